import { app } from "../../../scripts/app.js";

// The `text` of a node's result as text under the node. KV Memory Stats' plot is the node's own preview image, and both are in the result.
const REPORTING = ["KeepsakeKVMemoryStats", "KeepsakeARVideoModelLoader", "KeepsakeARProfile", "KeepsakeProfileHeads", "KeepsakeCalibrateHeads", "KeepsakeARVideoSampler"];

app.registerExtension({
  name: "keepsake.kv_stats",
  beforeRegisterNodeDef(nodeType, nodeData) {
    if (!REPORTING.includes(nodeData.name)) return;
    const previous = nodeType.prototype.onExecuted;
    nodeType.prototype.onExecuted = function (message) {
      previous?.apply(this, arguments);
      if (!message?.text?.length) return;
      if (!this.keepsakeReport) {
        const box = document.createElement("div");
        box.className = "keepsake-report";
        box.style.cssText = "white-space: pre-wrap; overflow: auto; font: 11px/1.5 monospace; color: var(--input-text);"
          + " background: var(--comfy-input-bg); padding: 6px; border-radius: 4px; user-select: text";
        this.addDOMWidget("report", "keepsake_report", box, { serialize: false, getMinHeight: () => 110 });
        this.keepsakeReport = box;
      }
      this.keepsakeReport.textContent = message.text.join("\n");
    };
  },
});
