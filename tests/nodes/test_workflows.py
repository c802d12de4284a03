"""The shipped workflows: each in both formats, the same graph in both, and nothing in them that
does not exist.
"""

import json
import re
from pathlib import Path

import pytest

from .test_schema import nodes

ROOT = Path(__file__).parents[2]
WORKFLOWS, DOCS = ROOT / "workflows", ROOT / "web/docs"
NAMES = sorted(path.stem for path in WORKFLOWS.glob("*.json"))


def load(name, folder=WORKFLOWS):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def as_graph(ui: dict) -> dict:
    """A UI workflow in the terms of the API format: class and inputs by node id, notes left out."""
    links = {link[0]: [str(link[1]), link[2]] for link in ui["links"]}
    graph = {}
    for node in ui["nodes"]:
        if node["type"].endswith("Note"):
            continue
        values, inputs = list(node["widgets_values"]), {}
        for part in node["inputs"]:
            if "widget" in part:
                value = values.pop(0)
                if part["name"] in ("seed", "noise_seed"):
                    values.pop(0)  # control_after_generate
                inputs[part["name"]] = value
            if part.get("link") is not None:
                inputs[part["name"]] = links[part["link"]]
        assert not values, f"{node['type']} has values without a widget"
        graph[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return graph


def test_there_are_workflows():
    assert "quickstart" in NAMES
    assert NAMES == sorted(path.stem for path in (WORKFLOWS / "api").glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_both_formats_mean_the_same(name):
    api, ui = load(name, WORKFLOWS / "api"), as_graph(load(name))
    assert {key: node["class_type"] for key, node in ui.items()} == {
        key: node["class_type"] for key, node in api.items()
    }
    for key, node in ui.items():
        given = api[key]["inputs"]
        if not node["class_type"].startswith(
            "Keepsake"
        ):  # the host's own widgets differ from version to version
            given = {name: value for name, value in given.items() if name in node["inputs"]}
        assert node["inputs"] == given


@pytest.mark.parametrize("name", NAMES)
def test_every_input_of_ours_exists(name):
    input_ids = {
        node.define_schema().node_id: {part.id for part in node.define_schema().inputs}
        for node in nodes()
    }
    for node in load(name, WORKFLOWS / "api").values():
        if node["class_type"].startswith("Keepsake"):
            assert set(node["inputs"]) <= input_ids[node["class_type"]]


NOT_SHIPPED = {"KeepsakeARVideoModelLoader", "KeepsakeLoadKVMemory"}  # their files


def test_comfy_test_leaves_out_what_needs_files_from_elsewhere():
    text = (ROOT / "comfy-test.toml").read_text(encoding="utf-8")
    needy = [
        name
        for name in NAMES
        if NOT_SHIPPED & {node["class_type"] for node in load(name, WORKFLOWS / "api").values()}
    ]
    assert sorted(re.findall(r'"!(\w+)"', text)) == needy


def test_a_user_meets_every_node():
    """In a workflow or on another node's help page; a policy node is found beside the others."""
    met = {node["class_type"] for name in NAMES for node in load(name, WORKFLOWS / "api").values()}
    pages = {path.stem: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    for schema in (node.define_schema() for node in nodes()):
        others = [text for name, text in pages.items() if name != schema.node_id]
        assert (
            schema.node_id in met
            or schema.node_id.startswith("KeepsakePolicy")
            or any(f"*{schema.display_name}*" in text for text in others)
        ), f"no workflow has {schema.node_id}, and no other help page names *{schema.display_name}*"


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_has_a_thumbnail(name):
    assert (WORKFLOWS / f"{name}.jpg").stat().st_size > 1000


def height_after_a_run(node: dict) -> int:
    """Of a node with its report below it."""
    return max(
        node["size"][1],
        {
            "KeepsakeARVideoModelLoader": 290,
            "KeepsakeLoadKVMemory": 230,
            "KeepsakeSaveKVMemory": 230,
        }.get(node["type"], 0),
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_sampler_has_room_for_its_preview_and_its_chart(name):
    """A lower one grows in its first run, over what is below it. Of a memory that it goes on from
    it tells in a report.
    """
    for node in load(name)["nodes"]:
        if node["type"] == "KeepsakeARVideoSampler":
            linked = {part["name"] for part in node["inputs"] if part.get("link") is not None}
            assert node["size"][1] >= (850 if "kv_memory" in linked else 700)


@pytest.mark.parametrize("name", NAMES)
def test_no_node_lies_on_another_not_even_after_a_run(name):
    """A node's title, 30 pixels, is drawn above its position."""
    boxes = [
        (x, y - 30, x + node["size"][0], y + height_after_a_run(node))
        for node in load(name)["nodes"]
        for x, y in [node["pos"]]
    ]
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert not [
            other
            for other in boxes[:i]
            if left < other[2] and other[0] < right and top < other[3] and other[1] < bottom
        ]


def loads_a_checkpoint(name) -> bool:
    return any(node["type"] == "KeepsakeARVideoModelLoader" for node in load(name)["nodes"])


@pytest.mark.parametrize("name", [*filter(loads_a_checkpoint, NAMES)])
def test_a_workflow_for_a_checkpoint_says_where_its_files_are(name):
    """ComfyUI offers to download what a node names under `properties.models`, where one of the
    node's own values is the name.
    """
    note = next(node for node in load(name)["nodes"] if node["type"] == "MarkdownNote")[
        "widgets_values"
    ][0]
    folders = {
        "KeepsakeARVideoModelLoader": ["diffusion_models", "loras"],
        "CLIPLoader": ["text_encoders"],
        "CLIPVisionLoader": ["clip_vision"],
        "VAELoader": ["vae"],
    }
    loaders = [node for node in load(name)["nodes"] if node["type"].endswith("Loader")]
    assert {"KeepsakeARVideoModelLoader", "VAELoader"} <= {node["type"] for node in loaders}
    for node in loaders:
        models = node["properties"]["models"]
        assert [model["name"] for model in models] == [
            value
            for value in node["widgets_values"]
            if str(value).endswith((".safetensors", ".pt")) and "-of-" not in value
        ]
        if any("-of-" in str(value) for value in node["widgets_values"]):  # shards: all of a folder
            assert "all shards in [" in note and "](https://huggingface.co/" in note
        for model, folder in zip(models, folders[node["type"]]):
            assert set(model) == {"name", "url", "directory"} and model["directory"] == folder
            assert model["url"].startswith("https://huggingface.co/") and model["url"].endswith(
                "/" + model["name"]
            )
            assert f"`models/{folder}`: [{model['name']}]({model['url']})" in note
