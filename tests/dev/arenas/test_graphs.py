"""dev/arenas: flags and workflow files become graphs, whose nodes run once."""

import json
from argparse import Namespace

import folder_paths
import pytest
from arenas import graphs
from arenas.flags import FLAGS
from arenas.maker import Maker
from arenas.node_run import NodeRun
from keepsake.kv_policies import KVPolicy, KVStorage, SinkWindow
from support.pack import ROOT

CHAIN = "sink_window: window_frames=9, sink_frames=3 + kvstorage:dtype=int8"


def flags(**changes):
    values = {name: options["default"] for name, options in FLAGS.items()}
    return Namespace(**{**values, "checkpoint": "demo", **changes})


def test_rows_share_their_models_and_have_a_policy_each():
    none, window = graphs.rows_of(flags(policy=["profile", CHAIN]))
    nodes = NodeRun()
    makers = [Maker(row, nodes) for row in (none, window)]
    assert makers[0].policy is None
    assert makers[1].policy == KVPolicy(SinkWindow(3, 9), storage=KVStorage("int8"))
    assert makers[0].model is makers[1].model and makers[0].vae is makers[1].vae


def test_a_workflow_is_a_row_with_its_own_policy():
    file = ROOT / "workflows/api/world_continue.json"
    (row,) = graphs.rows_of(flags(workflow=str(file)))
    assert row.name == "world_continue" and row.sampler["seed"] == 7
    policy = NodeRun().output(row.graph, row.link("kv_policy"))
    assert (policy.retention.mode, policy.retention.gamma) == ("threshold", 0.1)
    assert graphs.vae_link(row.graph) == ["3", 0]
    assert graphs.clip_link(row.graph, row.link("positive")) == ["2", 0]


def test_a_chain_takes_the_place_of_the_workflows_policy():
    file = ROOT / "workflows/api/world_continue.json"
    (row,) = graphs.rows_of(flags(workflow=str(file), policy=[CHAIN]))
    policy = NodeRun().output(row.graph, row.link("kv_policy"))
    assert policy == KVPolicy(SinkWindow(3, 9), storage=KVStorage("int8"))


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(checkpoint=""), "Neither --checkpoint nor --workflow"),
        (dict(policy=["sinkwindw"]), "--policy names 'sinkwindw'. Use one of: profile, "),
        (dict(policy=["sinkwindow:window=3"]), "'window=3' is no setting of KV Policy: Sink"),
        (dict(policy=["kvstorage:dtype=int3"]), "dtype is 'int3'. Use one of: "),
        (dict(policy=["pruningcontrol"]), "KeepsakePruningControl needs kv_policy. In a chain"),
        (dict(policy=["forcingkv"]), "KeepsakePolicyForcingKV needs head_map. In a chain"),
        (dict(policy=["full", "full"]), "--policy names full twice"),
        (dict(workflow="/no/such.json"), "--workflow is /no/such.json, which cannot be read"),
        (
            dict(checkpoint="a.safetensors", profile="Wan"),
            "profile is 'Wan'. Use one of: from file",
        ),
    ],
)
def test_what_is_wrong_is_said(changes, says):
    with pytest.raises(ValueError) as refused:
        graphs.rows_of(flags(**changes))
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize(
    "graph, says",
    [
        ({"nodes": []}, "is no graph in API format"),
        ({"1": {"class_type": "KeepsakeDemoWorld", "inputs": {}}}, "has 0 nodes AR Video Sampler"),
        ({"1": {"class_type": graphs.SAMPLER, "inputs": {}}}, "has 0 links to a VAE"),
    ],
)
def test_a_workflow_that_makes_no_take_is_refused(graph, says, tmp_path):
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(graph))
    with pytest.raises(ValueError, match=says):
        graphs.rows_of(flags(workflow=str(file)))


def test_model_folders_are_those_of_comfyuis_own_start(host_path, tmp_path, monkeypatch):
    """extra_model_paths.yaml of a ComfyUI counts, as when it starts by itself."""
    here = tmp_path / "ComfyUI"
    (here / "utils").mkdir(parents=True)
    file = "utils/extra_config.py"
    (here / file).write_bytes((host_path / file).read_bytes())
    models = tmp_path / "disk/unet"
    (here / "extra_model_paths.yaml").write_text(f"mine:\n    diffusion_models: {models}\n")
    monkeypatch.setenv("COMFYUI_PATH", str(here))
    monkeypatch.setattr(folder_paths, "folder_names_and_paths", folder_paths_copy())
    graphs.use_model_folders()
    assert str(models) in folder_paths.get_folder_paths("diffusion_models")


def folder_paths_copy() -> dict:
    known = folder_paths.folder_names_and_paths
    return {name: (list(folders), kinds) for name, (folders, kinds) in known.items()}
