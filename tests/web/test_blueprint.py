"""The subgraph blueprint, put into a workflow by the page's own search, wired and run."""

import json
from pathlib import Path

import pytest

NAME = "Long Take with Memory Stats"
SAMPLER, STATS = "KeepsakeARVideoSampler", "KeepsakeKVMemoryStats"
# In the place of the quickstart's sampler, decoder, video and stats.
PUT_IN_PLACE = """() => {
  const of = type => app.graph.nodes.find(node => node.type === type);
  const take = app.graph.nodes.find(node => node.isSubgraphNode?.());
  const slot = (slots, name) => slots.findIndex(slot => slot.name === name);
  const wire = (from, output, name) => from.connect(output, take, slot(take.inputs, name));
  wire(of("KeepsakeDemoWorld"), 0, "model");
  wire(of("KeepsakeDemoWorld"), 2, "vae");
  wire(of("CLIPTextEncode"), 0, "positive");
  wire(of("EmptyARVideoLatent"), 0, "latent");
  wire(of("KeepsakeDemoCamera"), 0, "control");
  wire(of("KeepsakePolicyFull"), 0, "kv_policy");
  const old = ["KeepsakeARVideoSampler", "VAEDecode", "ImageScaleBy", "CreateVideo",
               "KeepsakeKVMemoryStats", "SaveLatent"];
  for (const type of old) app.graph.remove(of(type));
  take.connect(slot(take.outputs, "video"), of("SaveVideo"), 0);
  return {
    seed: take.widgets.map(widget => widget.name),
    outputs: take.outputs.map(output => output.name),
  };
}"""


# Promoted widgets, and what is queued of the graph by node id.
SET_PROMOTED = """() => {
  const take = app.graph.nodes.find(node => node.isSubgraphNode?.());
  take.widgets.forEach((widget, i) => { widget.value = 4711 + i; });
  return Object.fromEntries(take.widgets.map(widget => [widget.name, widget.value]));
}"""
PROMOTED = """Object.fromEntries(app.graph.nodes.find(node => node.isSubgraphNode?.())
  .widgets.map(widget => [widget.name, widget.value]))"""
QUEUED = "app.graphToPrompt().then(prompt => prompt.output)"
SAVE_AND_OPEN = """() => {
  const saved = JSON.parse(JSON.stringify(app.rootGraph.serialize()));
  return app.loadGraphData(saved, true, true, "saved").then(() => saved);
}"""
SAVED_BEFORE = json.loads((Path(__file__).parent / "blueprint_saved_by_1.47.json").read_text())


def sampler_inputs(queued):
    (sampler,) = (node for node in queued.values() if node["class_type"] == SAMPLER)
    return sampler["inputs"]


@pytest.mark.newest_page
def test_the_blueprint_is_found_keeps_what_is_set_on_it_and_runs(page):
    page.open("quickstart", latent_frames=6)
    page.tab.evaluate("app.extensionManager.command.execute('Workspace.SearchBox.Toggle')")
    page.tab.get_by_role("dialog").get_by_role("combobox").last.wait_for()
    page.tab.keyboard.type(NAME)
    page.tab.get_by_text(NAME).first.wait_for()
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_function("app.graph.nodes.some(node => node.isSubgraphNode?.())")
    page.tab.mouse.click(800, 940)
    slots = page.tab.evaluate(PUT_IN_PLACE)
    assert slots == {
        "seed": ["seed"],
        "outputs": ["video", "images", "memory map", "plot", "latent"],
    }

    values = page.tab.evaluate(SET_PROMOTED)
    queued = page.tab.evaluate(QUEUED)
    assert sampler_inputs(queued)["seed"] == values["seed"] == 4711
    for _ in range(2):  # as it is saved at first, and as it is saved after it was opened
        page.tab.evaluate(SAVE_AND_OPEN)
        assert page.tab.evaluate(PROMOTED) == values
        assert page.tab.evaluate(QUEUED) == queued

    prompt_id = page.run()
    outputs = page.result(prompt_id)
    assert outputs[STATS]["kv_stats"][0]["frames"] == 6 and {SAMPLER, "SaveVideo"} <= set(outputs)
    assert sampler_inputs(page.server.ask(f"/history/{prompt_id}")[prompt_id]["prompt"][2]) == (
        sampler_inputs(queued)
    )


@pytest.mark.newest_page
def test_a_graph_with_the_blueprints_first_form_opens_with_the_seed_that_it_was_saved_with(page):
    """Frontend 1.47 saved the seed, 4711, and beside it the blueprint's own, 0, which it set again
    whenever the graph was opened. Frontends before 1.47 read neither.
    """
    page.tab.evaluate("graph => app.loadGraphData(graph, true, true, 'saved')", SAVED_BEFORE)
    version = page.tab.evaluate("window.__COMFYUI_FRONTEND_VERSION__")
    if tuple(map(int, version.split(".")[:2])) < (1, 47):
        pytest.skip(f"page {version} is older than the one that saved this graph")
    assert page.tab.evaluate(PROMOTED) == {"seed": 4711}
    assert sampler_inputs(page.tab.evaluate(QUEUED))["seed"] == 4711
