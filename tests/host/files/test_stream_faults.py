"""What takes in files must survive: kills while a frame waits for its pair, another writer, files
that were tampered with.
"""

import errno
import os
import random

import pytest
import torch
from keepsake.host.files import growing_files as streams
from keepsake.host.files.growing_files import StreamToFile
from keepsake.kv_policies import KVMemoryError, KVPolicy, SinkWindow
from support import tiny
from support.mutate import mutations

from .test_stream import make, pictures_of


class Killed(BaseException):
    pass


@pytest.fixture
def kill(monkeypatch):
    """`kill(n, run)`: the run ends at its n-th file of latents or memory, before it is written."""
    real = streams.save_tree

    def kill(at, run):
        calls = []

        def save_tree(tree, path):
            calls.append(path)
            if len(calls) == at:
                raise Killed
            real(tree, path)

        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(streams, "save_tree", save_tree)
            run()

    return kill


def test_a_frame_that_waits_at_the_first_save_of_a_resumed_take(model, vae, output, kill):
    """No picture came before that save, and the video still held those that were there before the
    take went on.
    """
    options = dict(frames=7, chunk_frames=1)
    make(model, vae, **options)
    kill(3, lambda: make(model, vae, every=3, **options))
    kill(3, lambda: make(model, vae, resume=True, **options))
    make(model, vae, resume=True, **options)
    assert (output / "take_00002_.mp4").read_bytes() == (output / "take_00001_.mp4").read_bytes()


def test_a_take_that_was_killed_in_its_last_save_and_is_extended(model, vae, output, kill):
    """The pictures of its last frame, which got no pair, were in the video and are not in the
    longer take's.
    """

    def make_both(frames, **options):
        return make(model, vae, frames=frames, chunk_frames=1, **options)

    make_both(8)
    make_both(11, resume=True)
    kill(15, lambda: make_both(8))
    make_both(8, resume=True)
    make_both(11, resume=True)
    assert (output / "take_00002_.mp4").read_bytes() == (output / "take_00001_.mp4").read_bytes()


def test_a_save_adds_its_latents_to_the_folder_and_nothing_else(model, vae, output):
    """What the decoder carries is large, and only the latest of it is needed."""

    def size(frames):
        make(model, vae, resume=frames > 9, frames=frames, policy=KVPolicy(SinkWindow(1, 6)))
        return sum(path.stat().st_size for path in (output / "take_00001_.take").iterdir())

    sizes = [size(frames) for frames in (9, 17, 25)]
    assert sizes[2] - sizes[1] < 8 * 16 * 4 * 6 * 4 + 4 * 1000  # and the headers of four files


def test_a_video_that_another_changes_is_told_and_the_last_save_goes_on(model, vae, output):
    """Its removal, or a second ComfyUI that goes on with the same take."""
    plain, _ = make(model, vae)
    video, straight, steps = (
        output / "take_00002_.mp4",
        (output / "take_00001_.mp4").read_bytes(),
        [],
    )

    def other(*args):
        steps.append(1)
        if len(steps) == 11:
            os.truncate(video, 2000)

    with pytest.raises(
        RuntimeError,
        match="not as this take left it: it was removed, or another take goes on in it",
    ):
        make(model, vae, callback=other)
    video.write_bytes(straight)  # as the other one made it
    again, _ = make(model, vae, resume=True)
    assert torch.equal(again, plain) and video.read_bytes() == straight


def test_two_takes_that_begin_together_have_a_video_each(model, vae, output, monkeypatch):
    """As two ComfyUIs with one output folder: the second while the first one's pictures are
    encoded.
    """
    first, second = (StreamToFile(vae, "take", 16.0, 1, False).open(model) for _ in range(2))

    real = streams.fragment

    def fragment(*args):
        monkeypatch.setattr(streams, "fragment", real)
        second.add(tiny.noise_of(7, 4, 6))
        return real(*args)

    monkeypatch.setattr(streams, "fragment", fragment)
    first.add(tiny.noise_of(5, 4, 6))
    assert [len(pictures_of(take.video)) for take in (first, second)] == [17, 25]


class Held:
    """Another program that holds the video open, as Windows lets one do: while it does, nobody
    writes into the file.
    """

    def __init__(self, monkeypatch):
        self.tries = 0  # writes that are refused from now on
        real = streams.append

        def append(path, data):
            if self.tries:
                self.tries -= 1
                raise PermissionError(13, "Permission denied")
            real(path, data)

        monkeypatch.setattr(streams, "append", append)
        monkeypatch.setattr("time.sleep", lambda seconds: None)


def test_a_video_that_is_held_for_a_moment_is_whole(model, vae, output, monkeypatch):
    make(model, vae)
    held = Held(monkeypatch)
    for tries in (1, 7):  # five for a chunk, so the second chunk is written with the third

        def hold_in_second_chunk(*args, steps=[], tries=tries):
            steps.append(1)
            if len(steps) == 3:
                held.tries = tries

        _, stats = make(model, vae, callback=hold_in_second_chunk)
        assert not held.tries and "another program" not in stats.notes[-1]
    straight = (output / "take_00001_.mp4").read_bytes()
    for number in (2, 3):
        assert (output / f"take_0000{number}_.mp4").read_bytes() == straight


def test_a_video_that_is_held_to_the_end_is_told_and_a_longer_take_fills_it(
    model,
    vae,
    output,
    monkeypatch,
):
    make(model, vae, frames=13)
    straight = (output / "take_00001_.mp4").read_bytes()
    held = Held(monkeypatch)
    held.tries = 10**6
    _, stats = make(model, vae, frames=9)
    video = output / "take_00002_.mp4"
    assert "The latest are not in it: another program holds the file" in stats.notes[-1]
    assert video.read_bytes() == b""
    held.tries = 0
    _, stats = make(model, vae, frames=13, resume=True)
    assert "another program" not in stats.notes[-1]
    assert [number for number, _ in pictures_of(video)] == list(range(49))
    assert len(pictures_of(output / "take_00001_.mp4")) == 49 and straight


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_that_cannot_sync_ends_no_take(model, vae, output, monkeypatch, number):
    """Network shares refuse it for folders, some FUSE file systems for files as well."""

    def fsync(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    make(model, vae)
    assert len(pictures_of(output / "take_00001_.mp4")) == 33


def test_a_disk_that_breaks_ends_it_in_a_sentence(model, vae, output, monkeypatch):
    def fsync(handle):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="take_00001_.mp4 cannot be written: input/output error. See"):
        make(model, vae)


def test_another_frame_rate_is_refused(model, vae, output):
    make(model, vae, stop_after=5)
    with pytest.raises(
        KVMemoryError,
        match="has 16 pictures a second, and the stream is to have 24. Set fps as it was",
    ):
        make(model, vae, resume=True, fps=24.0)


def test_whatever_is_wrong_with_the_files_of_a_take_is_one_kind_of_error(model, vae, output):
    make(model, vae, stop_after=5, every=2)
    to_file, draw, outcomes = StreamToFile(vae, "take", 16.0, 2, True), random.Random(3), []
    for path in (output / "take_00001_.take").iterdir():
        whole = path.read_bytes()
        for data in mutations(whole, draw, 150):
            path.write_bytes(data)
            try:
                to_file.open(model)
                outcomes.append("opens")
            except KVMemoryError:
                outcomes.append("own error")
        path.write_bytes(whole)
    assert outcomes.count("own error") > 200 and to_file.open(model).saved == 6
