"""Saved workflows are a promise: ids, inputs, defaults and their order stay as landed."""

import asyncio
import inspect
import json
from functools import partial
from pathlib import Path

import keepsake
import pytest
from keepsake.demo.world import CAMERA_PATHS, ROWS
from keepsake.kv_policies import FullKV, KVPolicy
from keepsake.nodes.sockets import DIRECTED
from schemas import SCHEMAS, schema_of

ROOT = Path(__file__).parents[2]
LANDED = json.loads(SCHEMAS.read_text())


def nodes():
    return asyncio.run(asyncio.run(keepsake.comfy_entrypoint()).get_node_list())


@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.__name__)
def test_a_landed_schema_only_grows_at_the_end(node):
    """What is new is added to schemas.json by dev/schemas.py."""
    now, landed = json.loads(json.dumps(schema_of(node))), LANDED.get(node.define_schema().node_id)
    assert landed, f"{node.define_schema().node_id} is new: run dev/python dev/schemas.py"
    for (name, kind, optional, options), before in zip(
        now["inputs"], landed["inputs"], strict=False
    ):
        choices, choices_before = options.pop("options", []), before[3].pop("options", [])
        assert [name, kind, optional, options] == before
        assert set(choices_before) <= set(choices)
    assert (
        len(now["inputs"]) >= len(landed["inputs"])
        and now["outputs"][: len(landed["outputs"])] == landed["outputs"]
    )
    for name, _kind, optional, options in now["inputs"][len(landed["inputs"]) :]:
        assert optional or "default" in options, f"the new input {name} needs a default"


def test_no_landed_node_is_gone():
    assert set(LANDED) <= {node.define_schema().node_id for node in nodes()}


@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.__name__)
def test_a_node_says_what_it_is(node):
    schema = node.define_schema()
    assert schema.node_id.startswith("Keepsake") and schema.category == "Keepsake"
    assert schema.description and schema.search_aliases and schema.display_name
    for part in schema.inputs:
        assert (
            part.tooltip
            or part.get_io_type() in ("MODEL", "CONDITIONING", "KEEPSAKE_KV_STATS")
            or part.id == "seed"
        ), part.id
        if part.get_io_type() in ("INT", "FLOAT"):
            assert part.as_dict()["min"] <= part.as_dict()["default"] <= part.as_dict()["max"]


@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.__name__)
def test_what_a_node_shows_is_in_every_result(node):
    """Of a node that is neither, the host leaves it out of a run that takes the node's outputs from
    its cache.
    """
    schema = node.define_schema()
    assert ("ui=" in inspect.getsource(node.execute)) == (
        schema.is_output_node or schema.has_intermediate_output
    )


@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.__name__)
def test_a_node_has_a_help_page_that_names_its_widgets(node):
    schema = node.define_schema()
    path = ROOT / "web/docs" / f"{schema.node_id}.md"
    assert path.exists(), f"{schema.node_id} has no help page: write {path.relative_to(ROOT)}"
    page = path.read_text(encoding="utf-8")
    assert page.startswith(f"# {schema.display_name}\n")
    for part in schema.inputs:
        assert f"**{part.id}**" in page or part.id == "kv_stats", part.id


def test_a_window_that_cannot_hold_its_sink_is_refused():
    node = next(node for node in nodes() if node.__name__ == "PolicySinkWindow")
    with pytest.raises(ValueError, match="sink_frames is 3 and window_frames 3"):
        node.execute(3, 3, "absolute")


def test_policies_chain():
    kinds = {node.__name__: node for node in nodes()}
    (stored,) = kinds["KVStorageNode"].execute("int8", 2, 3).args
    (window,) = kinds["PolicySinkWindow"].execute(9, 3, "shifted", kv_policy=stored).args
    assert window.storage == stored.storage and window.filled == {"storage", "retention"}
    assert (
        window.retention.window_frames,
        window.retention.sink_frames,
        window.retention.sink_rope,
    ) == (9, 3, "shifted")
    assert window.schedule == stored.schedule


def test_two_policies_for_one_slot_are_refused():
    kinds = {node.__name__: node for node in nodes()}
    (window,) = kinds["PolicySinkWindow"].execute(9, 3, "absolute").args
    with pytest.raises(
        ValueError,
        match=r"Sink \+ Window is this policy's retention already, and Full would take its place",
    ):
        kinds["PolicyFull"].execute(kv_policy=window)
    (hierarchical,) = kinds["PolicyHierarchical"].execute(9, kv_policy=window).args
    with pytest.raises(
        ValueError, match="is this policy's schedule already, and Rolling Forcing would"
    ):
        kinds["PolicyRollingForcing"].execute(9, kv_policy=hierarchical)
    (stored,) = kinds["KVStorageNode"].execute("int8", 2, 3, kv_policy=window).args
    with pytest.raises(ValueError, match="Remove one of the two KV Storage nodes"):
        kinds["KVStorageNode"].execute("int4", 2, 3, kv_policy=stored)


def test_a_slot_that_a_node_filled_with_its_default_is_filled():
    kinds = {node.__name__: node for node in nodes()}
    (full,) = kinds["PolicyFull"].execute().args
    with pytest.raises(ValueError, match="Full is this policy's retention already"):
        kinds["PolicySinkWindow"].execute(9, 3, "absolute", kv_policy=full)
    assert full == KVPolicy()  # it is no parameter


def test_a_window_equal_to_that_of_directed_forcing_is_not_dropped():
    kinds = {node.__name__: node for node in nodes()}
    parameters = (2.0, 4, 12, 7, 0)
    (window,) = kinds["PolicySinkWindow"].execute(21, 3, "shifted").args
    assert window.retention == DIRECTED.retention
    with pytest.raises(ValueError, match=r"Sink \+ Window is this policy's retention already"):
        kinds["PolicyFull"].execute(kv_policy=window)
    directed = kinds["PolicyDirectedForcing"].execute(
        *parameters, kv_policy=window, **{"lambda": 0.46}
    )
    (rolling,) = kinds["PolicyRollingForcing"].execute(9, kv_policy=directed.args[0]).args
    assert rolling.retention == window.retention  # the take refuses the two, in a sentence


def test_directed_and_rolling_forcing_are_the_same_policy_in_both_orders():
    kinds = {node.__name__: node for node in nodes()}
    directed = partial(kinds["PolicyDirectedForcing"].execute, 2.0, 4, 12, 7, 0, **{"lambda": 0.46})
    rolling = partial(kinds["PolicyRollingForcing"].execute, 21)
    (one,) = rolling(kv_policy=directed().args[0]).args
    (other,) = directed(kv_policy=rolling().args[0]).args
    assert one == other and one.retention == FullKV()


def test_the_window_that_directed_forcing_begins_with_gives_way_to_a_chosen_one():
    kinds = {node.__name__: node for node in nodes()}
    (directed,) = kinds["PolicyDirectedForcing"].execute(2.0, 4, 12, 7, 0, **{"lambda": 0.46}).args
    (window,) = kinds["PolicySinkWindow"].execute(9, 3, "absolute", kv_policy=directed).args
    assert window.retention.window_frames == 9 and window.selection == directed.selection


@pytest.mark.parametrize("path", CAMERA_PATHS)
def test_the_camera_fits_the_latent(path):
    import torch

    node = next(node for node in nodes() if node.__name__ == "DemoCamera")
    (control,) = node.execute({"samples": torch.zeros(1, 16, 9, ROWS, 16)}, path, 3, 1).args
    assert control.values.shape == (1, 16, 9, ROWS, 16)
    assert control.poses.shape == (9, 4, 4)
