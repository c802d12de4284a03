import { api } from "../../../scripts/api.js";
import { app } from "../../../scripts/app.js";
import { nodeOf, saveAlike } from "./panel.js";

// What nodes leave in the result, handed to our features when it comes, and again after a reload or
// a change of the workflow.

/** Runs of the history that are looked through for results of the open workflow. */
const HISTORY_RUNS = 8;

const features = [];

/** The address of a file that a result or a message names. */
export const fileUrl = (file) => `/view?${new URLSearchParams(file)}`;

/** The newest file of a result that was asked for, by node. */
const newest = new WeakMap();

/**
 * The JSON of the file that a node's result names; undefined where the server has it no more, and
 * where meanwhile a newer result has come or the node was removed.
 */
export async function valuesOf(node, file) {
  newest.set(node, file);
  const answer = await api.fetchApi(fileUrl(file));
  const values = answer.ok ? await answer.json() : undefined;
  return newest.get(node) === file && node.graph ? values : undefined;
}

/**
 * Call `show(node, output)` whenever a node's `ui` output is known, for the node classes whose name
 * `concerns(name)` accepts.
 */
export function onResult(concerns, show) {
  features.push({ concerns, show });
}

function deliver(id, output) {
  const node = output && nodeOf(id);
  if (!node?.comfyClass) return;
  for (const { concerns, show } of features) {
    if (concerns(node.comfyClass)) show(node, output);
  }
}

/** Deliver the results that the server still has of the open workflow. */
async function restore() {
  const workflow = app.rootGraph?.id;
  const answer = await api.fetchApi(`/history?max_items=${HISTORY_RUNS}`);
  const history = Object.values(await answer.json());
  if (workflow !== app.rootGraph?.id) return; // another workflow was opened meanwhile
  for (const run of history) {
    if (run.prompt?.[3]?.extra_pnginfo?.workflow?.id !== workflow) continue;
    for (const [id, output] of Object.entries(run.outputs)) deliver(id, output);
  }
}

app.registerExtension({
  name: "keepsake.results",
  setup() {
    api.addEventListener("executed", ({ detail }) => {
      deliver(detail.display_node ?? detail.node, detail.output);
    });
  },
  nodeCreated(node) {
    if (features.some(({ concerns }) => concerns(node.comfyClass))) saveAlike(node);
  },
  afterConfigureGraph: restore,
});
