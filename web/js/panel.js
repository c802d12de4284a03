import { app } from "../../../scripts/app.js";

// What our features share: finding a node, a DOM widget on it, its style, and plots over latent
// frames. Nothing happens on import.

/** Our widgets on a node, from top to bottom. */
const ORDER = ["chart", "memory_map", "report"];

// In the frontend's own colours, so that every panel follows the theme.
const BASE_STYLE = `
  .keepsake-panel {
    --keepsake-data: var(--p-primary-color, #4c9be8);
    --keepsake-text: var(--input-text);
    --keepsake-quiet: var(--descrip-text);
    --keepsake-line: var(--border-color);
    box-sizing: border-box;
    padding: 6px 8px;
    border-radius: 4px;
    background: var(--comfy-input-bg);
    color: var(--keepsake-text);
    font: 11px/1.3 var(--font-inter, sans-serif);
  }
  .keepsake-plots { display: flex; flex-direction: column; gap: 4px; overflow: hidden; }
  .keepsake-plots p {
    display: flex;
    justify-content: space-between;
    gap: 6px;
    margin: 0;
    white-space: nowrap;
  }
  .keepsake-plots svg { display: block; width: 100%; }
  .keepsake-plots path, .keepsake-plots rect { vector-effect: non-scaling-stroke; }
`;

/** Put the shared style into the page's head, so before that of any panel, once. */
function addBaseStyle() {
  if (document.getElementById("keepsake-style")) return;
  const style = document.createElement("style");
  style.id = "keepsake-style";
  style.textContent = BASE_STYLE;
  document.head.append(style);
}

/** The node that an execution id names; inside a subgraph it reads `outer:inner`. */
export function nodeOf(id) {
  let graph = app.rootGraph ?? app.graph;
  let node;
  for (const part of String(id).split(":")) {
    node = graph?.getNodeById(part);
    graph = node?.subgraph;
  }
  return node;
}

/**
 * The box of a node's DOM widget `name`, made at its first use, with `style` beside it. It goes
 * with the node, and is never saved with the workflow.
 */
export function panel(node, name, height, style, classes = "") {
  const existing = node.widgets?.find((widget) => widget.name === name);
  if (existing) return existing.element.querySelector(".keepsake-panel");

  addBaseStyle();
  const element = document.createElement("div");
  element.innerHTML = `
    <style>${style}</style>
    <div class="keepsake-panel keepsake-${name} ${classes}"></div>`;
  const box = element.querySelector(".keepsake-panel");
  // The Vue renderer lays DOM widgets out by their style, the canvas renderer by the options.
  box.style.minHeight = box.style.maxHeight = `${height}px`;
  const options = { serialize: false, getMinHeight: () => height, getMaxHeight: () => height };
  const widget = node.addDOMWidget(name, `keepsake_${name}`, element, options);
  widget.serialize = false;

  // The node's own widgets are not in ORDER: their index is -1, so they stay in front.
  node.widgets.sort((a, b) => ORDER.indexOf(a.name) - ORDER.indexOf(b.name));
  const [width, needed] = node.computeSize();
  node.setSize([Math.max(node.size[0], width), Math.max(node.size[1], needed)]);
  // The canvas renderer puts a DOM widget in its place when it draws, and until then it lies over
  // the page. Nothing else asks it to draw when a result comes after a reload.
  app.canvas.setDirty(true, true);
  return box;
}

/** What the page saves of widgets; the second one since frontend 1.49. */
const SAVED_VALUES = ["widgets_values", "widgets_values_named"];

/**
 * Let a node be saved alike with and without panels. The page saves an empty list of values for a
 * node whose only widgets are never saved, and none for a node without widgets: a panel that comes
 * with a result would mark the workflow as changed.
 */
export function saveAlike(node) {
  const before = node.onSerialize;
  node.onSerialize = function onSerialize(saved) {
    before?.call(this, saved);
    for (const key of SAVED_VALUES) {
      if (saved[key] && !Object.keys(saved[key]).length) delete saved[key];
    }
  };
}

export function removePanel(node, name) {
  const widget = node.widgets?.find((widget) => widget.name === name);
  if (widget) node.removeWidget(widget);
}

/** An SVG whose x axis is `frames` latent frames and whose y axis goes from 0 up to 1. */
export function plotSvg(frames, inner, height) {
  const style = height ? `style="height: ${height}px"` : "";
  return `<svg viewBox="0 -1 ${frames} 1" preserveAspectRatio="none" ${style}>${inner}</svg>`;
}
