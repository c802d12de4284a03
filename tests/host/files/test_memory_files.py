"""KV memories in the output folder: under which names, and what is wrong with a folder."""

import errno
import os
import re
import shutil
import stat
import time
from types import SimpleNamespace

import folder_paths
import pytest
from keepsake.host.files import memory_files, names
from keepsake.host.files.names import free_path
from keepsake.host.heads.heads import MAPS, TABLES, names_in
from keepsake.kv_policies import KVMemoryError, KVPolicy
from keepsake.nodes.heads import ProfileHeads
from keepsake.nodes.memory import LoadKVMemory, SaveKVMemory
from keepsake.nodes.stream import StreamToFileNode

from ... import fake


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(tmp_path))
    monkeypatch.setattr(
        folder_paths, "folder_names_and_paths", dict(folder_paths.folder_names_and_paths)
    )
    monkeypatch.setattr(folder_paths, "filename_list_cache", {})
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
        name, report = memory_files.save(memory_of(2 * number), prefix)
        assert (
            name == f"{prefix}_{number:05}_.safetensors"
            and name in memory_files.saved_memories()
            and name in report
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


@pytest.mark.skipif(os.name == "nt", reason="links need a right of their own on Windows")
def test_a_link_that_leads_nowhere_lists_nothing_and_says_so_when_saving(folder):
    folder.symlink_to(folder.with_name("gone"))
    assert memory_files.saved_memories() == [] and LoadKVMemory.define_schema()
    with pytest.raises(ValueError, match="kv_memory is a link to .*gone, which is not there. Make"):
        memory_files.save(memory_of(2), "take")


def test_an_output_folder_without_rights_lists_nothing_and_says_so_when_saving(folder, monkeypatch):
    def makedirs(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "makedirs", makedirs)
    assert memory_files.saved_memories() == [] and LoadKVMemory.define_schema()
    with pytest.raises(ValueError, match="kv_memory cannot be written to. Give ComfyUI the right"):
        memory_files.save(memory_of(2), "take")


def test_a_folder_that_is_removed_after_it_was_listed(folder):
    memory_files.save(memory_of(2), "sub/take")
    assert memory_files.saved_memories() == [os.path.join("sub", "take_00001_.safetensors")]
    shutil.rmtree(folder)
    assert memory_files.saved_memories() == []


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_share_that_cannot_sync_a_folder_takes_a_memory(folder, monkeypatch, number):
    real = os.fsync

    def fsync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    name, _ = memory_files.save(memory_of(2), "take")
    assert memory_files.load(name).frames == 2


def test_a_memory_that_another_program_holds_is_replaced_when_it_is_free(folder, monkeypatch):
    real, refusals = os.replace, [1, 1]

    def replace(*paths):
        if refusals:
            refusals.pop()
            raise PermissionError(13, "Permission denied")
        real(*paths)

    monkeypatch.setattr(os, "replace", replace)
    name, _ = memory_files.save(memory_of(2), "take")
    assert memory_files.load(name).frames == 2 and not refusals


USERS_LINE = "a line in extra_model_paths.yaml"


@pytest.mark.parametrize("is_default", [False, True])
@pytest.mark.parametrize("order", [(USERS_LINE, "ours"), ("ours", USERS_LINE)])
@pytest.mark.parametrize(
    "kind, listed, file",
    [
        (MAPS, lambda: names_in(MAPS), "demo_world.json"),
        (TABLES, lambda: names_in(TABLES), "demo_world.json"),
        (memory_files.FOLDER, memory_files.saved_memories, "take_00001_.safetensors"),
    ],
)
def test_a_users_own_folder_is_added_to_ours(
    folder, tmp_path, kind, listed, file, order, is_default
):
    """The host makes a folder name of a user's line, which then has no ending: all files count."""
    for name in (MAPS, TABLES):
        folder_paths.folder_names_and_paths.pop(name, None)
    users = tmp_path / "big disk"
    users.mkdir()
    mine = "mine" + os.path.splitext(file)[1]
    for name in (mine, "notes.txt"):
        (users / name).write_text("")
    memory_files.save(memory_of(2), "take")
    folder_paths.folder_names_and_paths.pop(memory_files.FOLDER)
    for step in order:
        if step == "ours":
            listed()
        else:
            folder_paths.add_model_folder_path(kind, str(users), is_default)
    assert mine in listed() and file in listed() and "notes.txt" not in listed()
    assert folder_paths.get_full_path(kind, mine) == str(users / mine)


def test_a_memory_that_was_just_saved_is_the_one_that_loads(folder, tmp_path):
    """Also where a user's folder of the same kind has one of that name."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "take_00001_.safetensors").write_text("")
    folder_paths.add_model_folder_path(memory_files.FOLDER, str(tmp_path / "mine"), True)
    name, _ = memory_files.save(memory_of(2), "take")
    assert memory_files.load(name).frames == 2


@pytest.mark.parametrize(
    "name, part",
    [
        ("a:b", "a:b"),
        ('say "hi"', 'say "hi"'),
        ("what?", "what[?]"),
        ("con.old", "con.old"),
        ("nul/take", "nul"),
        ("LPT1/take", "LPT1"),
        ("dots./take", "dots[.]"),
        ("%date:hh:mm%", r"\d\d:\d\d"),
    ],
)
def test_names_that_windows_cannot_make_are_refused_there_when_queued(monkeypatch, name, part):
    assert SaveKVMemory.validate_inputs(name) is True
    monkeypatch.setattr(names, "WINDOWS", True)
    says = SaveKVMemory.validate_inputs(name)
    assert re.match(f"filename_prefix has the part '{part}(_00001_)?', and Windows has no", says)
    assert StreamToFileNode.validate_inputs(name) == says
    if "/" not in name:
        assert "and Windows has no files of that name" in ProfileHeads.validate_inputs(name)
    for fine in ("take", "console/aux1", "a.b", "%date:yyyy-MM-dd%/take"):
        assert SaveKVMemory.validate_inputs(fine) is True


def test_a_date_in_a_name_is_filled_in(tmp_path, monkeypatch):
    now = time.struct_time((2026, 3, 4, 5, 6, 7, 0, 0, 0))
    monkeypatch.setattr(time, "localtime", lambda: now)
    path = free_path("%date:yyyy-MM-dd%/take_%date:yyMd_hhmmss%_%year%", str(tmp_path), ".json")
    assert path == tmp_path / "2026-03-04" / "take_2634_050607_2026_00001_.json"


def test_a_file_that_is_gone_is_a_sentence(folder):
    name, _ = memory_files.save(memory_of(2), "take")
    (folder / name).unlink()
    with pytest.raises(
        KVMemoryError, match="There is no take_00001_.safetensors in output/kv_memory"
    ):
        memory_files.load(name)


def test_the_log_says_what_is_written_in_sentences(folder, caplog):
    with caplog.at_level("INFO"):
        memory_files.save(memory_of(2), "take")
    assert re.search(
        r"Keepsake: KV memory of 2 latent frames: .* MiB\. Writing it to ", caplog.text
    )
