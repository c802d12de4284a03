"""Takes into a file while they are made: equal to decoding at once, safe at every point, every
frame once.
"""

import av
import comfy.model_management
import folder_paths
import pytest
import torch
from keepsake.host.files import growing_files as streams
from keepsake.host.files.growing_files import StreamToFile
from keepsake.host.files.stream_decode import StreamDecoder
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import (
    DeCoPrune,
    FlashForward,
    KVMemoryError,
    KVPolicy,
    RollingForcing,
    SinkWindow,
)
from support import tiny

FRAMES, CHUNK = 9, 2
FLASH = FlashForward(
    anchor_stride=4,
    block_anchors=2,
    anchor_window=2,
    planner_history=1,
    stage_history=1,
    budget_frames=6,
)


def make(
    model,
    vae,
    resume=False,
    every=1,
    policy=None,
    stream=True,
    frames=FRAMES,
    chunk_frames=CHUNK,
    callback=None,
    fps=16.0,
    **options,
):
    to_file = StreamToFile(vae, "take", fps, every, resume) if stream else None
    taken, stats = sample_take(
        model,
        tiny.prompt(1),
        None,
        1.0,
        {"samples": torch.zeros(1, 16, frames, 4, 6)},
        seed=11,
        steps=3,
        chunk_frames=chunk_frames,
        policy=policy,
        stream=to_file,
        callback=callback or (lambda *a: None),
        **options,
    )
    return taken["samples"], stats


def pictures_of(path):
    with av.open(str(path)) as video:
        return [
            (round(float(frame.time) * 16, 3), frame.to_ndarray(format="rgb24"))
            for frame in video.decode(video=0)
        ]


@pytest.mark.parametrize("sizes", [[9], [1] * 9, [3, 3, 3], [2, 5, 1, 1], [1, 3, 4, 1]], ids=str)
def test_pieces_decode_to_the_same_bits_as_the_whole(vae, model, sizes):
    latents = tiny.noise_of(9, 4, 6)
    decoder, out = StreamDecoder(vae, model), []
    for part in latents.split(sizes, 2):
        out.append(decoder(part))
        state, decoder = decoder.state(), StreamDecoder(vae, model)  # as after a restart
        decoder.restore(state)
    out.append(decoder.last())
    whole = vae.decode(latents)
    assert torch.equal(
        torch.cat([part for part in out if len(part)]), whole.reshape(-1, *whole.shape[-3:])
    )


def test_a_cancel_is_heard_between_two_pieces(vae, model, monkeypatch):
    """Report 76: the host looks before every operation."""
    decoder, process_output, pieces = StreamDecoder(vae, model), vae.process_output, []

    def cancel_after_a_pair(pictures):
        pieces.append(pictures)
        if len(pieces) == 2:
            comfy.model_management.interrupt_current_processing()
        return process_output(pictures)

    monkeypatch.setattr(vae, "process_output", cancel_after_a_pair)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        decoder(tiny.noise_of(9, 4, 6))
    assert len(pieces) == 2


def test_a_streamed_take_is_the_take_and_its_video_all_of_its_pictures(model, vae, output):
    plain, _ = make(model, vae, stream=False)
    latents, stats = make(model, vae)
    assert torch.equal(latents, plain)
    assert all({"video", "save"} <= set(row.seconds_by_phase) for row in stats.chunks)
    streamed, shown = (
        pictures_of(output / "take_00001_.mp4"),
        vae.decode(plain).reshape(-1, 32, 48, 3),
    )
    assert [number for number, _ in streamed] == list(range(33))
    assert (
        max(
            (torch.tensor(picture) / 255 - right).abs().mean()
            for (_, picture), right in zip(streamed, shown, strict=True)
        )
        < 0.2
    )
    assert any("33 pictures. Saved up to latent frame 9" in note for note in stats.notes)


@pytest.mark.parametrize(
    "policy, step",
    [
        (KVPolicy(SinkWindow(1, 6, "shifted")), 11),
        (KVPolicy(DeCoPrune(gamma=0.5)), 11),
        (KVPolicy(schedule=FLASH), 15),
        (KVPolicy(schedule=RollingForcing(15)), 6),
    ],
    ids=["window", "decoprune", "flash", "rolling"],
)
def test_a_cancelled_take_plays_and_resumes_to_the_same_bytes(model, vae, output, policy, step):
    plain, _ = make(model, vae, policy=policy, every=2)
    straight = (output / "take_00001_.mp4").read_bytes()
    calls = []

    def cancel(*args):
        calls.append(1)
        if len(calls) == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(model, vae, policy=policy, every=2, callback=cancel)
    video = output / "take_00002_.mp4"
    assert 0 < len(pictures_of(video)) < 33 and straight.startswith(video.read_bytes())
    again, _ = make(model, vae, policy=policy, every=2, resume=True)
    assert torch.equal(again, plain) and video.read_bytes() == straight


@pytest.mark.parametrize("at", range(2, 10))
def test_a_fault_at_any_save_loses_only_what_came_since(model, vae, output, monkeypatch, at):
    plain, _ = make(model, vae)
    straight, calls, real = (output / "take_00001_.mp4").read_bytes(), [], streams.save_tree

    def fault(tree, path):
        calls.append(path)
        if len(calls) == at:
            raise OSError(28, "No space left on device")
        real(tree, path)

    monkeypatch.setattr(streams, "save_tree", fault)
    with pytest.raises(OSError, match="No space left"):
        make(model, vae)
    monkeypatch.undo()
    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(output))
    again, stats = make(model, vae, resume=True)
    video = output / (
        "take_00002_.mp4" if at > 2 else "take_00003_.mp4"
    )  # before the first save there is nothing to resume
    assert torch.equal(again, plain) and video.read_bytes() == straight


def test_what_cannot_go_on_is_a_sentence(model, vae, output):
    make(model, vae, stop_after=5)
    video = output / "take_00001_.mp4"
    whole = video.read_bytes()
    video.write_bytes(whole[:-5])
    with pytest.raises(KVMemoryError, match="shorter than at its last save"):
        make(model, vae, resume=True)
    video.write_bytes(whole + b"torn")
    with pytest.raises(KVMemoryError, match="saved with the policy"):
        make(model, vae, resume=True, policy=KVPolicy(SinkWindow(1, 6)))
    (output / "take_00001_.take" / "latents_00000002.safetensors").unlink()
    with pytest.raises(KVMemoryError, match="cannot be read"):
        make(model, vae, resume=True)


def test_a_finished_take_is_told_and_can_be_extended(model, vae, output):
    make(model, vae)
    before = (output / "take_00001_.mp4").read_bytes()
    with pytest.raises(ValueError, match="is finished: all 9 latent frames"):
        make(model, vae, resume=True)
    assert (output / "take_00001_.mp4").read_bytes() == before
    longer, _ = make(model, vae, resume=True, frames=12)
    shown = vae.decode(longer).reshape(-1, 32, 48, 3)
    assert len(pictures_of(output / "take_00001_.mp4")) == len(shown) == 45


def test_another_vae_is_refused(vae):
    other = type("VAE", (), {"first_stage_model": torch.nn.Identity()})()
    with pytest.raises(ValueError, match="is Identity, and a stream decodes Wan 2.1's"):
        StreamToFile(other, "take", 16.0, 1, False)


def test_a_take_into_a_file_is_planned_once(model, vae, output, counts):
    for resume, stop_after in ((False, 5), (True, 0)):
        counts.update({"plans": 0, "dry runs": 0})
        make(model, vae, resume=resume, every=2, stop_after=stop_after)
        assert counts == {"plans": 1, "dry runs": 1}
