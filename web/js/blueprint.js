import { app } from "../../../scripts/app.js";

// Graphs that were saved with the first form of our blueprint, which named its promoted widgets by
// the source "-1". Frontends from 1.47 on find no such node: they put the entry aside with the
// value that the blueprint came with, and set that value again whenever the graph is opened. What a
// user has set stands in `widgets_values`, and is used once the entry is gone.

const LISTS = {
  proxyWidgets: ([source]) => source,
  proxyWidgetErrorQuarantine: ({ originalEntry: [source] }) => source,
};

function dropEntries({ properties }) {
  if (properties?.cnr_id !== "keepsake") return;
  for (const [list, sourceOf] of Object.entries(LISTS)) {
    const entries = properties[list];
    if (!Array.isArray(entries)) continue;
    const kept = entries.filter((entry) => String(sourceOf(entry)) !== "-1");
    if (kept.length < entries.length) properties[list] = kept;
  }
}

app.registerExtension({
  name: "keepsake.blueprint",
  beforeConfigureGraph(graph) {
    const subgraphs = graph.definitions?.subgraphs ?? [];
    for (const { nodes } of [graph, ...subgraphs]) nodes?.forEach(dropEntries);
  },
});
