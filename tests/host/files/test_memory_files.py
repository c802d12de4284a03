"""KV memories in the output folder: under which names, and what is wrong with a folder."""

import os
from types import SimpleNamespace

import folder_paths
import pytest
from keepsake.host.files import memory_files
from keepsake.host.files.names import free_path
from keepsake.kv_policies import KVMemoryError, KVPolicy

from ... import fake


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(tmp_path))
    monkeypatch.setattr(
        folder_paths, "folder_names_and_paths", dict(folder_paths.folder_names_and_paths)
    )
    folder_paths.folder_names_and_paths.pop(memory_files.FOLDER, None)
    return tmp_path / memory_files.FOLDER


def memory_of(frames):
    kept = []
    fake.take(KVPolicy(), frames, on_memory=kept.append)
    return kept[0]


def test_names_stay_in_the_folder(tmp_path):
    for name in ("../x", "/etc/x", "a/../../x", "..", "", ".", "\n", " ", "a\nb"):
        with pytest.raises(ValueError, match="must name a file below"):
            free_path(name, str(tmp_path), ".safetensors")
    with pytest.raises(ValueError, match="has a name of 300 bytes"):
        free_path("a/" + "x" * 300, str(tmp_path), ".safetensors")
    assert (
        free_path("a/b", str(tmp_path), ".safetensors") == tmp_path / "a" / "b_00001_.safetensors"
    )


@pytest.mark.parametrize(
    "prefix", ["take", "sub/take", "夜の街 🌃", "a.b_", "100% [draft] 'x' \"y\"", "-rf", "_00007_"]
)
def test_what_is_saved_is_listed_and_loads(folder, prefix):
    for number in (1, 2):
        name, told = memory_files.save(memory_of(2 * number), prefix)
        assert (
            name == f"{prefix}_{number:05}_.safetensors"
            and name in memory_files.saved_memories()
            and name in told
        )
        assert memory_files.load(name).frames == 2 * number


def test_two_that_save_at_the_same_time_have_a_file_each(folder, monkeypatch):
    """As two ComfyUIs with one output folder."""
    inner, real = [], memory_files.save_memory

    def save_memory(memory, path):
        monkeypatch.setattr(memory_files, "save_memory", real)
        inner.append(memory_files.save(memory_of(4), "take")[0])
        real(memory, path)

    monkeypatch.setattr(memory_files, "save_memory", save_memory)
    names = [memory_files.save(memory_of(8), "take")[0], *inner]
    assert [memory_files.load(name).frames for name in names] == [8, 4]
    assert sorted(path.name for path in folder.iterdir()) == [
        "take_00001_.safetensors",
        "take_00002_.safetensors",
    ]


def test_a_disk_without_room_leaves_nothing(folder, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(ValueError, match="Make room, or use a policy that keeps less"):
        memory_files.save(memory_of(2), "take")
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_to_is_named(folder, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(
        ValueError,
        match="kv_memory cannot be written to. Give ComfyUI the right to, or another "
        "--output-directory",
    ):
        memory_files.save(memory_of(2), "take")


def test_a_file_that_is_gone_is_a_sentence(folder):
    name, _ = memory_files.save(memory_of(2), "take")
    (folder / name).unlink()
    with pytest.raises(
        KVMemoryError, match="There is no take_00001_.safetensors in output/kv_memory"
    ):
        memory_files.load(name)
