import { api } from "../../../scripts/api.js";
import { app } from "../../../scripts/app.js";
import { nodeOf } from "./panel.js";

// What nodes leave in the result, given to our features when it comes, and again after a reload or a change of the workflow.

const features = [];

/** Call `show(node, output)` whenever the `ui` output of a node is known whose class has a name that `concerns` says yes to. */
export function onResult(concerns, show) {
  features.push({ concerns, show });
}

function deliver(id, output) {
  const node = output && nodeOf(id);
  for (const { concerns, show } of features) if (node?.comfyClass && concerns(node.comfyClass)) show(node, output);
}

async function restore() {
  const workflow = app.rootGraph?.id;
  const answer = await api.fetchApi("/history?max_items=8");
  const runs = Object.values(await answer.json()).filter((run) => run.prompt?.[3]?.extra_pnginfo?.workflow?.id === workflow);
  if (workflow !== app.rootGraph?.id) return;
  for (const run of runs) for (const [id, output] of Object.entries(run.outputs)) deliver(id, output);
}

app.registerExtension({
  name: "keepsake.results",
  setup() {
    api.addEventListener("executed", ({ detail }) => deliver(detail.display_node ?? detail.node, detail.output));
  },
  afterConfigureGraph: restore,
});
