import { onResult } from "./results.js";
import { panel, removePanel } from "./panel.js";

// The `text` in the result of one of our nodes, as text under the node.

const HEIGHT = 120;
const STYLE = `
  .keepsake-report {
    padding: 6px;
    overflow: auto;
    overflow-wrap: anywhere;
    white-space: pre-wrap;
    user-select: text;
    font: 11px/1.5 monospace;
  }
`;

onResult((name) => name.startsWith("Keepsake"), (node, { text }) => {
  if (text?.length) panel(node, "report", HEIGHT, STYLE).textContent = text.join("\n");
  else removePanel(node, "report");
});
