"""The memory file: whole or not there, and whatever is wrong with it, one kind of error."""

import json
import os
import random
import struct
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from keepsake.kv_policies import DeCoPrune, KVMemoryError, KVPolicy, RollingForcing, SinkWindow
from keepsake.rollout import tree_file
from keepsake.rollout.memory_file import KVMemory, load_memory, save_memory
from support.mutate import mutations

from .. import fake


def kept(policy=None, **options):
    memories = []
    fake.take(policy or KVPolicy(), on_memory=memories.append, **options)
    return memories[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.safetensors"


def test_a_file_holds_what_was_saved(path):
    memory = kept(KVPolicy(SinkWindow(2, 6, "shifted")), prefix=fake.noise_of(3))
    save_memory(memory, path)
    again, first, second = load_memory(path), {}, {}
    assert again.chunks == memory.chunks and again.nbytes == memory.nbytes
    assert tree_file.pack(again.parts(), "", first) == tree_file.pack(memory.parts(), "", second)
    assert first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


@pytest.mark.parametrize("at", ["save_file", "sync", "replace"])
def test_a_fault_at_any_point_leaves_the_file_before(path, monkeypatch, at):
    save_memory(kept(), path)
    before = path.read_bytes()

    def fault(*args, **kwargs):
        if at == "save_file":  # half of it is on the disk
            Path(args[1]).write_bytes(before[: len(before) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "replace") if at == "replace" else (tree_file, at)), fault)
    with pytest.raises(OSError, match="No space left"):
        save_memory(kept(stop_after=4), path)
    monkeypatch.undo()
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="the limit on a file's size is Unix's")
def test_a_disk_that_fills_up_leaves_the_file_before(path):
    """The system itself ends the writing in mid-file."""
    import resource

    save_memory(kept(stop_after=4), path)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError):
            save_memory(kept(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_a_process_that_dies_while_writing_leaves_the_file_before(path):
    save_memory(kept(), path)
    before = path.read_bytes()
    script = f"""
import sys, os
sys.path[:0] = {[str(Path(__file__).parents[2] / "dev")]!r}
from support.pack import load_pack
load_pack()
from pathlib import Path
from keepsake.rollout import memory_file, tree_file
memory = memory_file.load_memory(Path({str(path)!r}))
tree_file.sync = lambda path: os._exit(9)
memory_file.save_memory(memory, Path({str(path)!r}))
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 9
    assert path.read_bytes() == before
    save_memory(kept(), path)  # and what it left behind is in nobody's way
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_is_told_before_anything_is_written(path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(tree_file.shutil, "disk_usage", lambda folder: usage(100, 90, 10))
    with pytest.raises(ValueError, match="Make room, or use a policy that keeps less"):
        save_memory(kept(), path)
    assert not list(path.parent.iterdir())


def rewritten(path, change):
    """The file with its header's JSON changed by `change`, and a checksum that fits."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def test_files_that_are_none_have_a_sentence_each(path):
    with pytest.raises(KVMemoryError, match="cannot be read as a KV memory"):
        load_memory(path)
    path.write_bytes(b"not a file of ours")
    with pytest.raises(KVMemoryError, match="cannot be read as a KV memory"):
        load_memory(path)
    tree_file.save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(KVMemoryError, match="is a safetensors file, but no KV memory"):
        load_memory(path)
    save_memory(kept(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(KVMemoryError, match="cannot be read"):
        load_memory(path)
    path.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(KVMemoryError, match="not those that were written"):
        load_memory(path)
    path.write_bytes(whole)
    rewritten(path, lambda header: header["__metadata__"].update(version="2"))
    with pytest.raises(
        KVMemoryError, match="format version '2', and this Keepsake reads 1. Use .* newer"
    ):
        load_memory(path)
    path.write_bytes(struct.pack("<Q", 2**62) + whole[8:])
    with pytest.raises(KVMemoryError, match="cannot be read"):
        load_memory(path)


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [[1, 2, 0, 0]],
        [[0, 0, 0, 0]],
        [[0, 2, 2, 0]],
        [[0, 2, 0, 0], [3, 2, 0, 0]],
        [[0, 2, 0, 0], [2, 2, 1, 0]],
    ],
    ids=repr,
)
def test_chunks_that_make_no_take_are_refused(chunks):
    """None; begins late; empty; given is yes or no; a gap; given after made."""
    with pytest.raises(
        KVMemoryError, match="it holds no chunk|its chunks do not follow each other"
    ):
        KVMemory.from_parts({**kept().parts(), "chunks": chunks})


@pytest.mark.parametrize(
    "policy",
    [
        KVPolicy(SinkWindow(2, 6, "shifted")),
        KVPolicy(DeCoPrune(gamma=0.5)),
        KVPolicy(schedule=RollingForcing(15)),
    ],
    ids=["window", "decoprune", "rolling"],
)
def test_whatever_is_wrong_is_one_kind_of_error(path, policy):
    save_memory(kept(policy, frames=6, stop_after=4), path)
    outcomes = []
    for data in mutations(path.read_bytes(), random.Random(5), 120):
        path.write_bytes(data)
        try:
            out, *_ = fake.take(policy, frames=6, memory=load_memory(path))
            outcomes.append("loads")
        except KVMemoryError:
            outcomes.append("own error")
    assert outcomes.count("own error") > 80
