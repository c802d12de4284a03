"""dev/arenas: a folder of takes that a run fills, and the next one goes on with."""

import av
import pytest
import torch
from arenas import results
from arenas.results import Job, Results, work_through

PICTURES = (torch.arange(9 * 16 * 32 * 3) % 251).reshape(9, 16, 32, 3).byte()


def job(folder: Results, name: str, made: list, error: Exception | None = None) -> Job:
    def make():
        made.append(name)
        if error:
            raise error
        return PICTURES, 16, {"task": name}

    return Job(folder, name, 12, make)


def test_takes_are_made_once_and_a_broken_one_stops_no_other(tmp_path):
    folder, made, said = Results(tmp_path / "row", {"frames": 12}), [], []
    jobs = [
        job(folder, "seed2/a", made),
        job(folder, "seed2/b", made, RuntimeError("a cat on the keys")),
        job(folder, "seed2/c", made),
    ]
    failed = work_through(jobs, said.append)
    assert [each.name for each in failed] == ["seed2/b"] and made == [
        "seed2/a",
        "seed2/b",
        "seed2/c",
    ]
    assert "row/seed2/b: " in said[1] and " FAILED (RuntimeError: a cat on the keys);" in said[1]
    assert "a cat on the keys" in (tmp_path / "row/seed2/b.error.txt").read_text()
    files = {
        file: file.read_bytes() for file in tmp_path.rglob("*.*") if "b.error" not in file.name
    }
    # Again, and b is well now: the others are as they were.
    work_through([jobs[0], job(folder, "seed2/b", made), jobs[2]], said.append)
    assert made[3:] == ["seed2/b"] and folder.read("seed2/b") == {"task": "seed2/b"}
    assert not (tmp_path / "row/seed2/b.error.txt").exists()
    assert all(file.read_bytes() == data for file, data in files.items())
    # The same pictures are the same file.
    assert folder.video("seed2/b").read_bytes() == folder.video("seed2/a").read_bytes()


def test_the_video_has_every_picture_at_its_time(tmp_path):
    folder = Results(tmp_path, {})
    folder.write("a", PICTURES, 16, {})
    with av.open(str(folder.video("a"))) as video:
        stream = video.streams.video[0]
        times = [float(frame.time) for frame in video.decode(stream)]
    assert times == [number / 16 for number in range(9)] and stream.frames == 9


def test_other_settings_are_refused(tmp_path):
    Results(tmp_path, {"frames": 12, "policy": "full"})
    with pytest.raises(ValueError, match=r"has takes of other settings \(policy\)"):
        Results(tmp_path, {"frames": 12, "policy": "window"})


def test_time_left_is_reckoned_by_the_takes_of_this_run(tmp_path):
    one, other = Results(tmp_path / "one", {}), Results(tmp_path / "other", {})
    jobs = [job(one, "a", []), job(one, "b", [])._replace(frames=24), job(other, "c", [])]
    pace = results.Pace()
    assert pace.words(jobs) == "3 left, no take yet to reckon by"
    pace.add(jobs[0], 6.0)  # half a second for each of 12 latent frames
    assert pace.words(jobs[1:2]) == "1 left, about 12.0 s by 1 take"
    assert pace.words(jobs[1:]) == (
        "2 left, about 18.0 s by 1 take, 1 row of it by the pace of the others"
    )
    assert pace.words([]) == "done"


def test_a_folder_that_takes_nothing_more_stops_the_run(tmp_path, monkeypatch):
    """Each further take would be lost as well, and may cost an hour."""
    folder, made = Results(tmp_path, {}), []
    jobs = [job(folder, "a", made), job(folder, "b", made)]

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(ValueError, match=r"a\.mp4 cannot be written \(No space left on device\)"):
        work_through(jobs, lambda line: None)
    assert made == ["a"]


def test_a_folder_that_cannot_be_one_is_told_of(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"settings\.json cannot be written \(Not a directory\)"):
        Results(tmp_path / "file/row", {})
