"""Constant inputs that cannot work are refused when the graph is queued, by the host's own
validation.
"""

import asyncio

import execution
import pytest
from comfy_api.latest import io

import nodes as host_nodes

from .test_schema import nodes

KINDS = {node.__name__: node for node in nodes()}
CLASS = {name: node.define_schema().node_id for name, node in KINDS.items()}


class Source:
    """Everything that comes by wire; the MODEL first."""

    RETURN_TYPES = ["MODEL"]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(
        host_nodes,
        "NODE_CLASS_MAPPINGS",
        {"Source": Source, **{CLASS[name]: node for name, node in KINDS.items()}},
    )


def errors_of(name, /, **inputs) -> list[str]:
    """What the host says of such a node; inputs that are not named have their defaults, or come by
    wire, and those that are `...` are left out.
    """
    parts = KINDS[name].define_schema().inputs
    values = {part.id: part.as_dict()["default"] for part in parts if "default" in part.as_dict()}
    sockets = [part for part in parts if part.id not in values and not part.optional]
    Source.RETURN_TYPES = ["MODEL", *(part.get_io_type() for part in sockets)]
    graph = {
        "1": {
            "class_type": CLASS[name],
            "inputs": {
                **values,
                **{part.id: ["2", slot] for slot, part in enumerate(sockets, 1)},
                **inputs,
            },
        },
        "2": {"class_type": "Source", "inputs": {}},
    }
    graph["1"]["inputs"] = {
        key: value for key, value in graph["1"]["inputs"].items() if value is not ...
    }
    _, errors, _ = asyncio.run(
        execution.validate_inputs("test", graph, "1", {"2": (True, [], "2")})
    )
    return [f"{error['message']}: {error['details']}" for error in errors]


@pytest.mark.parametrize(
    "name, inputs, words",
    [
        ("SaveKVMemory", dict(filename_prefix="../x"), "must name a file below"),
        ("SaveKVMemory", dict(filename_prefix="x" * 300), "a name of 300 bytes"),
        ("StreamToFileNode", dict(filename_prefix="/x"), "must name a file below"),
        ("PromptTimeline", dict(text="a storm"), "Line 1 of the timeline is 'a storm'"),
        ("PromptTimeline", dict(fps=0.0), "smaller than min of 0.1: fps"),
        ("PromptTimeline", dict(blend=-1), "smaller than min of 0: blend"),
        ("PromptTimeline", dict(mode="fade"), "mode: 'fade' not in"),
        ("PromptTimeline", dict(recache_frames=-1), "smaller than min"),
        ("PromptAtFrame", dict(mode="cut", blend=3), "A cut with a blend"),
        ("PromptAtFrame", dict(mode="fade"), "mode is 'fade'"),
        ("PromptAtFrame", dict(start_frame=0), "smaller than min"),
        (
            "PolicySinkWindow",
            dict(window_frames=3, sink_frames=3),
            "sink_frames is 3 and window_frames 3",
        ),
        ("PolicySinkWindow", dict(sink_frames=-1), "sink_frames is -1"),
        ("PolicySinkWindow", dict(window_frames=4097), "window_frames is 4097. Use 1 to 4096."),
        ("PromptTimeline", dict(fps=241.0), "bigger than max of 240.0: fps"),
        ("PolicyDirectedForcing", dict(budget_max=4097), "budget_max is 4097"),
        ("PolicySinkWindow", dict(sink_rope="none"), "not in list"),
        (
            "PolicyDirectedForcing",
            dict(budget_min=9, budget_max=4),
            "budget_min is 9 and budget_max 4",
        ),
        (
            "PolicyDeCoPrune",
            dict(virtual_length=8, reindex_recent=8),
            "reindex_recent is 8 and virtual_length 8",
        ),
        ("WorldActions", dict(keys="w16"), "'w16' is no part of a walk"),
        ("WorldActions", dict(mode="templerun"), "holds the key 'l', and there are w s z c a d"),
        ("WorldActions", dict(mode="doom"), "mode is 'doom'"),
        ("WorldCamera", dict(path="keys", keys="w16"), "'w16' is no part of a walk"),
        ("WorldCamera", dict(path="sideways"), "path is 'sideways'"),
        ("DemoCamera", dict(keys="q-8"), "holds the key 'q'"),
        ("KVStorageNode", dict(device="cpu"), "dtype is int8 and device cpu"),
        ("KVStorageNode", dict(dtype="int2"), "dtype is 'int2'"),
        ("ProfileHeads", dict(name="../x"), "must be a plain file name"),
        ("CalibrateHeads", dict(name=""), "must be a plain file name"),
        ("ProfileHeads", dict(name="../x"), "must be a plain file name"),
        ("CalibrateHeads", dict(name=""), "must be a plain file name"),
    ],
    ids=str,
)
def test_it_is_told_before_anything_runs(name, inputs, words):
    assert not errors_of(name)
    errors = errors_of(name, **inputs)
    assert errors and all(words in error for error in errors)


@pytest.mark.parametrize(
    "name, inputs, at",
    [
        ("PromptTimeline", dict(text="a storm", fps=24.0), ["text"]),
        ("PromptTimeline", dict(fps=0.0), ["fps"]),
        ("PolicyDummyForcing", dict(ar_start=0), ["ar_start"]),
        ("PolicyEmaSink", dict(sink_weight=1.5), ["sink_weight"]),
        ("PolicyMemRope", dict(alpha_long=2.0), ["alpha_long"]),
        ("PolicyDeepForcing", dict(reuse_limit=-1), ["reuse_limit"]),
        ("DemoCamera", dict(keys="d32"), ["keys"]),
        ("PolicyMemRope", dict(window_frames=5), ["window_frames", "sink_frames"]),
        ("WorldCamera", dict(path="keys", keys="w16"), ["path", "keys"]),
    ],
    ids=str,
)
def test_a_mistake_is_reported_where_it_stands(name, inputs, at):
    """Once; or at each of the inputs that exclude each other, and at no other one."""
    errors = errors_of(name, **inputs)
    assert [error.split(": ", 1)[1].split(" - ")[0].split(":")[0] for error in errors] == at


@pytest.mark.parametrize("text", ["0: a\n6s: b\n6.01s: c", "0: a\n0:06: b\n96: c"])
def test_lines_that_begin_together_at_some_rates_alone_are_queued(text):
    assert not errors_of("PromptTimeline", text=text, fps=240.0)


def test_what_takes_other_inputs_to_see_is_told_when_the_node_runs():
    """Named in `validate_inputs`, it would be reported at inputs that have no part in it."""
    with pytest.raises(ValueError, match="A cut with a blend of 3"):
        KINDS["PromptTimeline"].execute(None, "0: a\n6s: b", 16.0, "cut", 3, 0)
    with pytest.raises(ValueError, match="with adaptive.*an alpha_short of 0 to 0.2"):
        KINDS["PolicyMemRope"].execute(12, 3, 0.01, 0.5, True)


def test_a_graph_without_decoprunes_mode_is_refused():
    """So its default may change: a graph that runs says its mode itself."""
    assert errors_of("PolicyDeCoPrune", mode=...) == ["Required input is missing: mode"]
    for mode in ("threshold", "target_keep", "valley"):
        assert not errors_of("PolicyDeCoPrune", mode=mode)


def test_ranges_are_held_where_other_inputs_come_by_wire():
    """The host leaves the ranges of all inputs that `validate_inputs` names to it."""
    assert any(
        "window_frames is 5000" in error
        for error in errors_of("PolicySinkWindow", window_frames=5000, sink_frames=["2", 0])
    )


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, node in KINDS.items()
        if node.validate_inputs.__func__ is not io.ComfyNode.validate_inputs.__func__
    ],
)
def test_every_range_of_a_schema_is_held(name):
    """Of nodes that have checks of their own; all others are the host's business."""
    for part in KINDS[name].define_schema().inputs:
        allowed = part.as_dict()
        for value in (
            [allowed["min"] - 1, allowed["max"] + 1]
            if "min" in allowed
            else ["strange"]
            if "options" in allowed
            else []
        ):
            assert any(part.id in error for error in errors_of(name, **{part.id: value})), (
                part.id,
                value,
            )


def test_what_comes_by_wire_is_not_judged():
    assert errors_of("PolicySinkWindow", window_frames=3) == errors_of(
        "PolicySinkWindow", window_frames=3, sink_frames=3
    )
    assert all(
        "mismatch" in error
        for error in errors_of("PolicySinkWindow", window_frames=3, sink_frames=["2", 0])
    )  # a MODEL, which is no number
