"""CMBench's data: rows that are refused in a sentence, and contexts as the authors' code makes
them.
"""

from pathlib import Path

import pytest
import torch
from arenas.cmbench import context, source
from arenas.cmbench.tasks import read_tasks
from keepsake.demo.load import load_demo_world
from safetensors.torch import load_file

from .cmbench_data import CONTEXTS, TASKS, drawn, row, write_data, write_rows

# By the authors' own functions with OpenCV, encoded by the demo world's VAE: normalised latents,
# every second frame, row and column.
AUTHORS = load_file(Path(__file__).parent / "cmbench_contexts.safetensors")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("cmbench"))


def test_all_rows_are_read(data):
    tasks = read_tasks(data)
    assert [task.name for task in tasks] == [name for name, *_ in TASKS]
    first = tasks[0]
    assert (first.type, first.task_type) == ("synthetic", "reappear")
    assert first.prompt == "old town at day" and first.labels == ("house", "building")
    assert [task.name for task in read_tasks(data, "real*")] == [name for name, *_ in TASKS[4:]]


def changed(**values) -> dict:
    return row(0) | {"task_id": "x"} | values


def reference(**values) -> dict:
    good = {"timestamp_seconds": 0.5, "bbox_xyxy_normalized": [0.1, 0.1, 0.2, 0.2]}
    return changed(references=[good | values])


CLIPS = row(0)["context_clip_prompts"]
BROKEN = [
    ("{", "it is no JSON ("),
    ("[]", "it is no JSON object"),
    (row(1), "its task_id stands in an earlier row"),
    (changed(task_id=""), "its task_id is ''"),
    (changed(task_id="../x"), "its task_id is '../x'"),
    (changed(task_id="x.error"), "its task_id is 'x.error'"),  # its files would be another's
    (changed(task_id="a\nb"), "its task_id is 'a\\nb'"),
    (changed(task_id="x" * 81), "its task_id is 'xxx"),
    (changed(task_id="SYN_001_reappear_01"), "its task_id stands in an earlier row"),
    ("[" * 100_000, "it is no JSON ("),
    (changed(type="drawn"), "x has the type 'drawn', not synthetic or real"),
    (changed(task_type="return"), "x has the task_type 'return', not reappear or revisit"),
    (changed(video="videos/../../secret.mp4"), "x has the video 'videos/../../secret.mp4', and a"),
    (changed(video="/videos/a.mp4"), "x has the video '/videos/a.mp4', and a path inside"),
    (changed(video="videos/real/real_009.mp4"), "x has the video 'videos/real/real_009.mp4', w"),
    (changed(video="videos/" + "a" * 300), "x has the video 'videos/aaa"),
    (changed(video="videos/\0.mp4"), "x has the video 'videos/\\x00.mp4', which is not there"),
    (changed(video="loop.mp4"), "x has the video 'loop.mp4', which is not there"),
    (changed(video="metadata.jsonl"), "x: metadata.jsonl cannot be read as a video"),
    (changed(context_clip_prompts=CLIPS[:5]), "x has 5 context_clip_prompts, and 6"),
    (changed(context_clip_prompts=[*CLIPS[:5], {}]), "x has 6 context_clip_prompts, and 6 with a"),
    (changed(continue_prompt=""), "x has no continue_prompt"),
    (changed(target_label=None), "x has no target_label"),
    (changed(target_aliases="building"), "x has the target_aliases 'building', not a list"),
    (changed(target_aliases=[5]), "x has the target_aliases [5], not a list"),
    (changed(scene="\ud800"), "x holds what no JSON file in UTF-8 can ("),
    (changed(score=float("nan")), "x holds what no JSON file in UTF-8 can ("),
    (changed(references=[]), "x has no references"),
    (reference(bbox_xyxy_normalized=[0.5, 0, 0.5, 1]), "x, reference 1: its bbox_xyxy_normalized"),
    (reference(bbox_xyxy_normalized=[0, 0, 1.1, 1]), "x, reference 1: its bbox_xyxy_normalized"),
    (reference(bbox_xyxy_normalized=[0, 0, 1]), "x, reference 1: its bbox_xyxy_normalized"),
    (reference(bbox_xyxy_normalized=[0, 0, float("nan"), 1]), "x, reference 1: its bbox_xyxy_n"),
    (reference(bbox_xyxy_normalized=[0, 0, 10**400, 1]), "x, reference 1: its bbox_xyxy_n"),
    (reference(timestamp_seconds=10**400), "x, reference 1: its timestamp_seconds"),
    (reference(timestamp_seconds=1e308), "x, reference 1: its timestamp_seconds"),
    (reference(timestamp_seconds=-1), "x, reference 1: its timestamp_seconds"),
    (reference(timestamp_seconds=None), "x, reference 1: its timestamp_seconds"),
    (reference(frame_index=1.5), "x, reference 1: its frame_index is 1.5"),
    (reference(frame_index=True), "x, reference 1: its frame_index is True"),
    (reference(frame_index=25), "x, reference 1: it stands at frame 25, and the video has 25"),
]


def test_every_wrong_row_is_told_of_in_a_sentence(data, monkeypatch):
    monkeypatch.setattr("arenas.cmbench.tasks.FAULTS_SHOWN", 99)
    before = (data / "metadata.jsonl").read_text(encoding="utf-8")
    (data / "loop.mp4").symlink_to("loop.mp4")
    write_rows(data, [row(0), row(1), *(each for each, _ in BROKEN)])
    try:
        with pytest.raises(ValueError) as refused:
            read_tasks(data)
    finally:
        (data / "metadata.jsonl").write_text(before, encoding="utf-8")
    lines = str(refused.value).splitlines()
    assert len(lines) == len(BROKEN)
    for number, (line, (_, says)) in enumerate(zip(lines, BROKEN), 3):
        assert line.startswith(f"metadata.jsonl, line {number}: {says}") and line.endswith(".")


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no metadata\.jsonl"):
        read_tasks(tmp_path)
    write_rows(tmp_path, [""])
    with pytest.raises(ValueError, match="is empty"):
        read_tasks(tmp_path)
    (tmp_path / "metadata.jsonl").write_bytes("ü".encode("latin-1"))
    with pytest.raises(ValueError, match=r"metadata\.jsonl cannot be read as UTF-8 text"):
        read_tasks(tmp_path)


def test_frames_are_those_nearest_in_time():
    # A second of 24 frames at 16: one and a half source frames a step, halves to the even number.
    assert context.resampled(source.Source(7, 24, 64, 128)) == [0, 2, 3, 4, 6]
    assert context.resampled(source.Source(3, 8, 64, 128)) == [0, 0, 1, 2, 2]
    assert context.resampled(source.Source(1, 30, 64, 128)) == [0]


def test_the_last_frame_fills_the_last_chunk():
    # A latent frame for the first picture and one for each four of the rest, in whole chunks.
    frames = {pixels: context.context_frames(pixels, 4) for pixels in (1, 13, 14, 961)}
    assert frames == {1: 4, 13: 4, 14: 8, 961: 244}
    assert context.pixel_frames(244) == 973


def test_context_latents_are_those_of_the_authors_functions(data):
    model, _, vae = load_demo_world()
    for path, fps, frames, *_ in CONTEXTS:
        video = data / f"videos/{path}.mp4"
        pictures = context.context_pictures(video, (64, 128), chunk_frames=3)
        latents = model.model.latent_format.process_in(vae.encode(pictures))
        wanted = AUTHORS[path]
        torch.testing.assert_close(latents[0, :, ::2, ::2, ::2], wanted, atol=1e-5, rtol=0)
        assert source.probe(video)[:2] == (frames, fps)


def test_a_reference_without_a_number_stands_at_its_second(data):
    reappear, revisit, *_ = read_tasks(data)
    (given,), (by_time, _) = reappear.references, revisit.references
    seen = source.probe(revisit.video)
    assert given.frame_in(seen) == 12 and by_time.frame_in(seen) == 7  # 0.3 s of 24 a second
    assert torch.equal(source.picture(revisit.video, 7), drawn(0)[7])


def test_a_video_that_ends_early_is_told_of(data):
    video = data / "videos/real/real_001.mp4"
    with pytest.raises(ValueError, match=r"real_001\.mp4 ends before frame 31"):
        list(source.pictures(video, [30, 31]))
