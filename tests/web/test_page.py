"""What an artist sees: the shipped workflows open and run on the page, in both node renderers."""

import re
from pathlib import Path

import pytest

WORKFLOWS = sorted(path.stem for path in (Path(__file__).parents[2] / "workflows").glob("*.json"))
SAMPLER, STATS, MAP = "KeepsakeARVideoSampler", "KeepsakeKVMemoryStats", "KeepsakeKVMemoryMap"


# In front of the quickstart's larger pixels, and in view; its policy is one that drops half of what
# is no longer among the latest.
PUT_A_MEMORY_MAP_IN = """() => {
  const policy = LiteGraph.createNode("KeepsakePolicyDeCoPrune");
  app.graph.add(policy);
  const values = { mode: "target_keep", target_keep: 0.5, dense_chunks: 1 };
  for (const widget of policy.widgets) widget.value = values[widget.name] ?? widget.value;
  const of = type => app.graph.nodes.find(node => node.type === type);
  const sampler = of("KeepsakeARVideoSampler");
  const decode = of("VAEDecode");
  const scale = of("ImageScaleBy");
  const map = LiteGraph.createNode("KeepsakeKVMemoryMap");
  map.pos = [sampler.pos[0], sampler.pos[1] + 560];
  app.graph.add(map);
  decode.connect(0, map, 0);
  sampler.connect(1, map, 1);
  policy.connect(0, sampler, sampler.inputs.findIndex(input => input.name === "kv_policy"));
  map.connect(0, scale, 0);
}"""


def words_on_cache(row) -> str:
    """The chart's words on the cache at a chunk of the result."""
    return f"{sum(row['bank_bytes']) / 2**20:.1f} of {row['allocated_bytes'] / 2**20:.1f} MiB"


# In the memory map's picture.
DARK_TOKENS = """(canvas => {
  const picture = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return picture.data.filter((value, i) => i % 4 === 3 && value).length;
})(document.querySelector(".keepsake-memory_map canvas"))"""


def point(page, plot, frame):
    """At a latent frame of twelve in the memory map's upper or lower plot."""
    plots = page.panel(MAP, "memory_map", "latent frame").query_selector_all("svg")
    box = plots[0 if plot == "upper" else -1].bounding_box()
    page.tab.mouse.move(box["x"] + box["width"] * (frame + 0.5) / 12, box["y"] + 3)


def test_every_workflow_opens(page):
    for name in WORKFLOWS:
        page.open(name)
        missing = page.tab.evaluate(
            "app.graph.nodes.map(node => node.type).filter(type => !(type in "
            "LiteGraph.registered_node_types))"
        )
        assert not missing, name
        assert (
            page.tab.evaluate(
                "app.graph.nodes.filter(node => node.type.startsWith('Keepsake')).length"
            )
            > 1
        ), name
        assert page.tab.get_by_text("Missing Node").count() == 0, name


@pytest.mark.newest_page
def test_the_quickstart_runs_by_its_button_and_shows_its_result(page):
    page.open("quickstart", latent_frames=12)
    page.tab.evaluate(PUT_A_MEMORY_MAP_IN)
    saved = "JSON.stringify(app.graph.nodes.map(node => node.serialize().widgets_values))"
    before = page.tab.evaluate(saved)
    outputs = page.result(page.run())
    last = page.server.values(outputs[STATS], "kv_stats_file")["chunks"][-1]
    memory = page.server.values(outputs[MAP], "memory_map_file")
    map_file = re.compile(outputs[MAP]["memory_map_file"][0]["filename"])
    (dropped,), kept = memory["dropped"], memory["kept_by_frame"]
    assert 0 < kept[3] < 1
    for _ in range(2):  # as it came, and after a reload
        for node_class in (SAMPLER, STATS):
            page.panel(node_class, "chart", words_on_cache(last))
        assert "12 latent frames" in page.panel(STATS, "report", "prune ratio").inner_text()
        point(page, "upper", 3)
        page.panel(MAP, "memory_map", f"latent frame 3{100 * kept[3]:.1f} % in memory")
        # As many tokens are dark as were dropped.
        page.tab.wait_for_function(
            f"{DARK_TOKENS} === {sum(tokens for chunk, tokens in dropped[3])}"
        )
        point(page, "lower", 4)  # back to when it was made
        page.panel(MAP, "memory_map", "latent frame 3100.0 % in memory")
        page.panel(MAP, "memory_map", "as 3 to 5 were made")
        page.tab.wait_for_function(f"{DARK_TOKENS} === 0")
        point(page, "lower", 0)
        page.panel(MAP, "memory_map", "latent frame 3not made yet")
        # A run of nothing new sends the same result again: what was chosen stays.
        with page.tab.expect_response(map_file):
            page.run()
        page.tab.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        page.panel(MAP, "memory_map", "latent frame 3not made yet")
        assert page.tab.evaluate(saved) == before
        page.reload()


# What the page itself goes by when it asks whether to save.
IS_CHANGED = """(() => {
  const { activeWorkflow } = app.extensionManager.workflow;
  const tracker = activeWorkflow.changeTracker;
  (tracker.captureCanvasState ?? tracker.checkState).call(tracker);
  return activeWorkflow.isModified;
})()"""
# Half a second of an idle page, longer on a busy one.
THIRTY_PICTURES = """async () => {
  for (let i = 0; i < 30; i++) await new Promise(requestAnimationFrame);
}"""


@pytest.mark.newest_page
def test_a_run_does_not_mark_the_workflow_as_changed(page):
    """Nor do the panels that come with its result. (With Vue nodes, frontend 1.45 marks it as soon
    as it is opened: it gives a note another height.)
    """
    page.open("quickstart", latent_frames=6)
    page.tab.evaluate(THIRTY_PICTURES)  # the height of a note is set late
    before = page.tab.evaluate(IS_CHANGED)
    outputs = page.result(page.run())
    page.panel(STATS, "report", outputs[STATS]["text"][0][:20])
    page.panel(STATS, "chart", "MiB")
    assert page.tab.evaluate(IS_CHANGED) == before


def test_a_reload_and_a_removed_node_in_mid_run(page):
    page.open("quickstart", latent_frames=255)  # more than are made while a busy page reloads
    page.run()
    page.panel(SAMPLER, "chart", "MiB")
    page.panel(STATS, "chart", "MiB")
    page.reload()
    page.panel(SAMPLER, "chart", "MiB")
    # A message has its own chunk alone; those of before the reload come from the file it names.
    starts = page.tab.evaluate(
        "document.querySelector('.keepsake-chart').take.chunks.map(row => row.start_frame)"
    )
    assert starts == list(range(0, 3 * len(starts), 3))
    page.tab.evaluate(f"app.graph.remove({page.node(SAMPLER)})")
    page.tab.evaluate(
        "new Promise(done => app.api.addEventListener('keepsake.chunk', done, { once: true }))"
    )
    page.tab.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    assert (
        page.tab.locator(".keepsake-chart").count() == 1
    )  # that of KV Memory Stats, which nothing draws any more


# As a file that is dropped on the page.
DROP = """async file => {
  const answer = await app.api.fetchApi(`/view?${new URLSearchParams(file)}`);
  const video = new File([await answer.blob()], file.filename, { type: "video/mp4" });
  await app.handleFile(video, "file_drop");
}"""
NODES = """app.graph.nodes.map(node => {
  return [node.id, node.type, node.serialize().widgets_values?.[0] ?? ""];
})"""


@pytest.mark.newest_page
def test_a_streamed_video_that_is_dropped_on_the_page_opens_its_graph(page):
    page.open("endless_to_file", latent_frames=6)
    nodes = page.tab.evaluate(NODES)
    (video,) = page.result(page.run())[SAMPLER]["images"]
    page.open("quickstart")
    assert page.tab.evaluate(NODES) != nodes
    page.tab.evaluate(DROP, video)
    page.tab.wait_for_function(f"app.graph.nodes.length === {len(nodes)}")
    assert sorted(page.tab.evaluate(NODES)) == sorted(nodes)


def test_a_node_shows_its_help_page_with_its_picture(page):
    page.open("quickstart")
    page.tab.evaluate(f"app.canvas.selectNode({page.node('KeepsakeDemoCamera')})")
    page.tab.get_by_test_id("info-button").click()
    page.tab.wait_for_function(
        "document.querySelector('.node-help-content img[alt^=\"The node\"]')?.naturalWidth > 100"
    )


# What the page says of a node.
WORDS = """() => {
  const node = LiteGraph.createNode("KeepsakePolicySinkWindow");
  app.graph.add(node);
  return {
    title: node.title,
    widgets: node.widgets.map((widget) => widget.label ?? widget.name),
    description: node.constructor.nodeData.description,
  };
}"""


def test_a_node_shows_the_english_of_its_schema(page):
    """locales/en has no words for nodes: in English the page takes those of the schema."""
    page.open("quickstart")
    words = page.tab.evaluate(WORDS)
    assert words["title"] == "KV Policy: Sink + Window"
    assert words["widgets"] == ["window_frames", "sink_frames", "sink_rope", "whole_chunks"]
    assert words["description"].startswith("Keeps the first frames and the latest frames")
