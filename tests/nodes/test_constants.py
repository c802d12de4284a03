"""Constant inputs that cannot work are refused when the graph is queued, by the host's own validation."""
import asyncio
import os

import pytest

if not os.environ.get("COMFYUI_PATH"):
    pytest.skip("no ComfyUI to test in", allow_module_level=True)

import execution  # noqa: E402

import nodes as host_nodes  # noqa: E402

from .test_schema import nodes  # noqa: E402

KINDS = {node.__name__: node for node in nodes()}
CLASS = {name: node.define_schema().node_id for name, node in KINDS.items()}

WIRED = {"SaveKVMemory": ("LoadKVMemory", {"kv_memory": 0}), "StreamToFileNode": ("DemoWorld", {"vae": 2}), "PromptTimeline": ("DemoWorld", {"clip": 1}),
         "PromptAtFrame": ("PromptTimeline", {"conditioning": 0, "next": 0})}      # by node: where its sockets are wired to


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(host_nodes, "NODE_CLASS_MAPPINGS", {CLASS[name]: node for name, node in KINDS.items()})


def told(name, **inputs) -> list[str]:
    """What the host says of such a node; inputs that are not named have their defaults, or come by wire."""
    values = {part.id: part.as_dict()["default"] for part in KINDS[name].define_schema().inputs if "default" in part.as_dict()}
    source, wires = WIRED.get(name, ("DemoWorld", {}))
    graph = {"1": {"class_type": CLASS[name], "inputs": {**values, **{socket: ["2", slot] for socket, slot in wires.items()}, **inputs}},
             "2": {"class_type": CLASS[source], "inputs": {}}}
    _, errors, _ = asyncio.run(execution.validate_inputs("test", graph, "1", {"2": (True, [], "2")}))
    return [f"{error['message']}: {error['details']}" for error in errors]


@pytest.mark.parametrize("name, inputs, words", [
    ("SaveKVMemory", dict(filename_prefix="../x"), "must name a file below"),
    ("SaveKVMemory", dict(filename_prefix="x" * 300), "a name of 300 bytes"),
    ("StreamToFileNode", dict(filename_prefix="/x"), "must name a file below"),
    ("PromptTimeline", dict(text="a storm"), "Line 1 of the timeline is 'a storm'"),
    ("PromptTimeline", dict(mode="cut", blend=3), "A cut with a blend"),
    ("PromptTimeline", dict(fps=0.0), "fps is 0.0"),
    ("PromptTimeline", dict(blend=-1), "blend is -1"),
    ("PromptTimeline", dict(recache_frames=-1), "smaller than min"),
    ("PromptAtFrame", dict(mode="cut", blend=3), "A cut with a blend"),
    ("PromptAtFrame", dict(mode="fade"), "mode is 'fade'"),
    ("PromptAtFrame", dict(start_frame=0), "smaller than min"),
    ("PolicySinkWindow", dict(window_frames=3, sink_frames=3), "sink_frames is 3 and window_frames 3"),
    ("PolicySinkWindow", dict(sink_frames=-1), "sink_frames is -1"),
    ("PolicySinkWindow", dict(sink_rope="none"), "not in list"),
    ("PolicyDirectedForcing", dict(budget_min=9, budget_max=4), "budget_min is 9 and budget_max 4"),
    ("PolicyDeCoPrune", dict(virtual_length=8, reindex_recent=8), "reindex_recent is 8 and virtual_length 8"),
    ("KVStorageNode", dict(device="cpu"), "dtype is int8 and device cpu"),
    ("KVStorageNode", dict(dtype="int2"), "dtype is 'int2'"),
], ids=str)
def test_it_is_told_before_anything_runs(name, inputs, words):
    assert not told(name)
    errors = told(name, **inputs)
    assert errors and all(words in error for error in errors)


def test_what_comes_by_wire_is_not_judged():
    assert told("PolicySinkWindow", window_frames=3) == told("PolicySinkWindow", window_frames=3, sink_frames=3)
    assert all("mismatch" in error for error in told("PolicySinkWindow", window_frames=3, sink_frames=["2", 0]))     # a MODEL, which is no number
