import { onResult } from "./results.js";
import { panel, removePanel } from "./panel.js";

// The `text` of a node of ours in the result as text under the node.

// In the frontend's own colours, so that it follows the theme.
const STYLE = `
  .keepsake-report { white-space: pre-wrap; overflow-wrap: anywhere; overflow: auto; font: 11px/1.5 monospace; color: var(--input-text); background: var(--comfy-input-bg);
    padding: 6px; border-radius: 4px; user-select: text; box-sizing: border-box; }
`;

onResult((name) => name.startsWith("Keepsake"), (node, { text }) => {
  if (text?.length) panel(node, "report", 120, STYLE).textContent = text.join("\n");
  else removePanel(node, "report");
});
