"""The video that grows: every picture once and at its time, and whole pieces only."""

import os
from fractions import Fraction

import av
import pytest
import torch
from keepsake.host.files.video_file import append, fragment, movie

from .test_stream import pictures_of


def add(path, pictures, first):
    path.touch()
    append(path, fragment(pictures, first, 16.0))


def test_a_cut_in_mid_piece_keeps_every_picture_and_its_time(tmp_path):
    """Where an encoder sees a new scene it would begin a fragment of its own, which knows nothing
    of the pictures before the piece.
    """

    def scene(seed, pictures):
        return (
            torch.rand(1, 6, 6, 3, generator=torch.Generator().manual_seed(seed))
            .repeat_interleave(8, 1)
            .repeat_interleave(8, 2)
            .expand(pictures, -1, -1, -1)
        )

    pieces, first = [[scene(1, 13)], [scene(2, 40), scene(3, 40), scene(4, 3)], [scene(5, 4)]], 0
    for piece in pieces:
        add(tmp_path / "x.mp4", torch.cat(piece), first)
        first += sum(map(len, piece))
    shown = pictures_of(tmp_path / "x.mp4")
    assert [number for number, _ in shown] == list(range(first))
    expected = torch.cat([scene for piece in pieces for scene in piece])
    assert (
        max(
            (torch.tensor(picture) / 255 - right).abs().mean()
            for (_, picture), right in zip(shown, expected)
        )
        < 0.1
    )


def test_the_header_has_metadata_that_may_name_any_box(tmp_path):
    """Every fragment has its own number and time: 1 and 0, 2 and 5 pictures at 16 a second."""
    video, texts = tmp_path / "x.mp4", {"prompt": '{"text": "tfdt mfhd moof"}', "workflow": "{}"}
    video.touch()
    for first in (0, 5):
        append(video, fragment(torch.rand(5, 32, 48, 3), first, 16.0, texts))
    with av.open(str(video)) as opened:
        assert {key: opened.metadata[key] for key in texts} == texts
    assert [number for number, _ in pictures_of(video)] == [*range(10)]
    assert video.read_bytes().count(b"tfdt mfhd moof") == 1


@pytest.mark.skipif(os.name == "nt", reason="the limit on a file's size is Unix's")
def test_a_disk_that_fills_up_leaves_a_video_of_whole_pieces(tmp_path):
    import resource
    import signal

    video, noise = tmp_path / "x.mp4", torch.rand(6, 32, 48, 3)
    add(video, noise, 0)
    before, limits, handler = (
        video.read_bytes(),
        resource.getrlimit(resource.RLIMIT_FSIZE),
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, limits[1]))
    try:
        with pytest.raises(OSError):
            add(video, noise, 6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert video.read_bytes() == before and len(pictures_of(video)) == 6


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores, and a way to use one",
)
def test_the_same_pictures_are_the_same_bytes_on_any_number_of_cores(tmp_path):
    pictures, cores = (
        torch.rand(4, 240, 416, 3, generator=torch.Generator().manual_seed(1)),
        os.sched_getaffinity(0),
    )
    add(tmp_path / "all.mp4", pictures, 0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        add(tmp_path / "one.mp4", pictures, 0)
    finally:
        os.sched_setaffinity(0, cores)
    assert (tmp_path / "one.mp4").read_bytes() == (tmp_path / "all.mp4").read_bytes()


@pytest.mark.parametrize(
    "file_of", [lambda x: movie(x, Fraction(16)), lambda x: fragment(x, 0, 16.0)]
)
def test_the_same_pictures_are_the_same_bytes(file_of):
    """x264 made eight files of twelve of these, which are small and move."""
    picture = torch.rand(6, 40, 3, generator=torch.Generator().manual_seed(1))
    picture = picture.repeat_interleave(8, 0).repeat_interleave(8, 1)
    moving = torch.stack([picture[:, 3 * i : 3 * i + 96] for i in range(16)])
    files = set()
    for number in range(12):
        other = torch.full((1000 * number,), 3.0)  # what lies in memory that is freed again
        del other
        files.add(file_of(moving))
    assert len(files) == 1
