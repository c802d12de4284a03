import { app } from "../../../scripts/app.js";

// What our features share: finding a node, and a DOM widget on it. Nothing happens on import.

const ORDER = ["chart", "memory_map", "report"];

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

/** The box of a node's DOM widget `name`, made at its first use, its style beside it. It goes with the node, and is never saved with the workflow. */
export function panel(node, name, height, css) {
  const there = node.widgets?.find((widget) => widget.name === name);
  if (there) return there.element.lastChild;
  const element = document.createElement("div");
  element.innerHTML = `<style>${css}</style><div class="keepsake-${name}"></div>`;
  const box = element.lastChild;
  box.style.minHeight = box.style.maxHeight = `${height}px`;       // for the Vue renderer, which lays DOM widgets out by their style
  const widget = node.addDOMWidget(name, `keepsake_${name}`, element, { serialize: false, getMinHeight: () => height, getMaxHeight: () => height });
  widget.serialize = false;
  node.widgets.sort((a, b) => ORDER.indexOf(a.name) - ORDER.indexOf(b.name));     // a node's own widgets are no part of it and stay in front
  const needed = node.computeSize();
  node.setSize([Math.max(node.size[0], needed[0]), Math.max(node.size[1], needed[1])]);
  return box;
}

export function removePanel(node, name) {
  const widget = node.widgets?.find((widget) => widget.name === name);
  if (widget) node.removeWidget(widget);
}
