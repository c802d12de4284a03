import { api } from "../../../scripts/api.js";
import { nodeOf, panel } from "./panel.js";
import { onResult } from "./results.js";
import { say } from "./words.js";

// A take's memory over its latent frames: while it runs from the messages of finished chunks, afterwards from the node's result.

const CHARTED = ["KeepsakeKVMemoryStats", "KeepsakeARVideoSampler", "SamplerCustomAdvanced"];
const HEIGHT = 168;

// In the frontend's own colours, so that it follows the theme.
const STYLE = `
  .keepsake-chart { position: relative; display: flex; flex-direction: column; gap: 4px; padding: 6px 8px; box-sizing: border-box; overflow: hidden;
    border-radius: 4px; background: var(--comfy-input-bg); color: var(--input-text); font: 11px/1.3 var(--font-inter, sans-serif); }
  .keepsake-chart p { display: flex; justify-content: space-between; margin: 0 0 1px; white-space: nowrap; }
  .keepsake-chart p span:first-child { color: var(--descrip-text); }
  .keepsake-chart section { flex: 1; min-height: 0; display: flex; flex-direction: column; }
  .keepsake-chart svg { flex: 1; min-height: 0; width: 100%; display: block; }
  .keepsake-chart .bars { fill: var(--p-primary-color, #4c9be8); }
  .keepsake-chart .quiet { fill: var(--descrip-text); opacity: .7; }
  .keepsake-chart .limit { fill: none; stroke: var(--input-text); stroke-dasharray: 3 3; opacity: .6; vector-effect: non-scaling-stroke; }
  .keepsake-chart .ground { stroke: var(--border-color); vector-effect: non-scaling-stroke; }
  .keepsake-chart .chosen { fill: var(--input-text); opacity: .18; }
`;

const live = (row) => row.bank_bytes.reduce((sum, bytes) => sum + bytes, 0);
const kept = (row) => (row.full_tokens ? row.kept_tokens / row.full_tokens : 1);
const mib = (bytes) => {
  const digits = bytes < 2 ** 27 ? 1 : 0;
  return (bytes / 2 ** 20).toLocaleString(undefined, { minimumFractionDigits: digits, maximumFractionDigits: digits });
};

// Of each plot: its bars, what they may reach, the line above them, and its words for one chunk.
const PLOTS = [
  { name: "memory", value: live, limit: (row) => row.allocated_bytes, told: (row) => say("memory_told", { live: mib(live(row)), allocated: mib(row.allocated_bytes) }) },
  { name: "kept", value: kept, most: 1, told: (row) => say("kept_told", { kept: (100 * kept(row)).toFixed(1) }) },
  { name: "time", value: (row) => row.seconds, quiet: true, told: (row) => say("time_told", { seconds: row.seconds.toFixed(2) }) },
];

const rect = (row, height) => `M${row.start_frame} 0v${height}h${row.frames - 0.12}V0z`;
const svg = (frames, inner) => `<svg viewBox="0 -1 ${frames} 1" preserveAspectRatio="none">${inner}</svg>`;

function plot({ value, limit, most, quiet }, frames, rows, chosen) {
  const top = most ?? (1.05 * Math.max(...rows.map(limit ?? value)) || 1);
  const bars = rows.map((row) => rect(row, -value(row) / top)).join("");
  const line = limit ? `<path class="limit" d="${rows.map((row, i) => `${i ? "L" : "M"}${row.start_frame} ${-limit(row) / top}h${row.frames}`).join("")}"/>` : "";
  return svg(frames, `<path class="ground" d="M0 0H${frames}"/><path class="${quiet ? "quiet" : "bars"}" d="${bars}"/>${line}`
    + (chosen ? `<path class="chosen" d="${rect(chosen, -1)}"/>` : ""));
}

/** Draw the rows of a take of `frames` latent frames; the words are of the chunk under the pointer, else of the newest one. */
function draw(box) {
  const { frames, chunks } = box.take;
  const chosen = chunks.find((row) => row.start_frame <= box.at && box.at < row.start_frame + row.frames);
  const row = chosen ?? chunks.at(-1);
  box.replaceChildren(...PLOTS.map((one) => {
    const section = document.createElement("section");
    section.innerHTML = `<p><span></span><span></span></p>${plot(one, frames, chunks, chosen)}`;
    const [name, told] = section.querySelectorAll("span");
    name.textContent = chosen && one === PLOTS[0] ? say("at_frames", { first: row.start_frame, last: row.start_frame + row.frames - 1 }) : say(one.name);
    told.textContent = one.told(row);
    return section;
  }));
}

function show(node, take) {
  if (!take.chunks.length) return;
  const box = panel(node, "chart", HEIGHT, STYLE);
  box.take = take;
  box.onpointermove ??= (event) => {
    const { left, width } = box.firstChild.lastChild.getBoundingClientRect();
    box.at = Math.floor(((event.clientX - left) / width) * box.take.frames);
    draw(box);
  };
  box.onpointerleave ??= () => {
    box.at = undefined;
    draw(box);
  };
  draw(box);
}

/** KV Memory Stats nodes that a sampler's output goes to. */
function statsNodes(node) {
  const links = node.outputs?.flatMap((output) => output.links ?? []) ?? [];
  return links.map((link) => node.graph.getNodeById(node.graph.getLink(link)?.target_id)).filter((target) => target?.comfyClass === "KeepsakeKVMemoryStats");
}

api.addEventListener("keepsake.chunk", ({ detail }) => {
  const node = nodeOf(detail.node);
  if (!CHARTED.includes(node?.comfyClass)) return;
  for (const one of [node, ...statsNodes(node)]) show(one, detail);
});

onResult((name) => CHARTED.includes(name), (node, { kv_stats }) => {
  if (kv_stats) show(node, { frames: kv_stats[0].frames, chunks: kv_stats[0].chunks.filter((row) => row.item === 0) });
});
