import { onResult } from "./results.js";
import { panel, removePanel, style } from "./panel.js";

// The `text` of a node's result as text under the node.

const REPORTING = ["KeepsakeKVMemoryStats", "KeepsakeARVideoModelLoader", "KeepsakeARProfile", "KeepsakeProfileHeads", "KeepsakeCalibrateHeads", "KeepsakeARVideoSampler", "KeepsakeKVMemoryEstimate"];

style(`
  .keepsake-report { white-space: pre-wrap; overflow: auto; font: 11px/1.5 monospace; color: var(--input-text); background: var(--comfy-input-bg);
    padding: 6px; border-radius: 4px; user-select: text; box-sizing: border-box; }
`);

onResult(REPORTING, (node, { text }) => {
  if (text?.length) panel(node, "report", 120).textContent = text.join("\n");
  else removePanel(node, "report");
});
