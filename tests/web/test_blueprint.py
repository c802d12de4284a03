"""The subgraph blueprint, put into a workflow by the page's own search, wired and run."""

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


def test_the_blueprint_is_found_and_runs(page):
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
    outputs = page.result(page.run())
    assert outputs[STATS]["kv_stats"][0]["frames"] == 6 and {SAMPLER, "SaveVideo"} <= set(outputs)
