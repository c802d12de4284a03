import { api } from "../../../scripts/api.js";
import { nodeOf, panel, plotSvg } from "./panel.js";
import { fileUrl, onResult, valuesOf } from "./results.js";
import { say } from "./words.js";

// A take's memory over its latent frames: while it runs from the messages of finished chunks,
// afterwards from the file that the node's result names.

const STATS = "KeepsakeKVMemoryStats";
const CHARTED = [STATS, "KeepsakeARVideoSampler", "SamplerCustomAdvanced"];
const HEIGHT = 168;
/** Share of a chunk's last latent frame that stays empty, so that bars stand apart. */
const GAP = 0.12;

const STYLE = `
  .keepsake-chart { position: relative; }
  .keepsake-chart p { margin-bottom: 1px; }
  .keepsake-chart .label { color: var(--keepsake-quiet); }
  .keepsake-chart section { flex: 1; min-height: 0; display: flex; flex-direction: column; }
  .keepsake-chart svg { flex: 1; min-height: 0; }
  .keepsake-chart .bars { fill: var(--keepsake-data); }
  .keepsake-chart .quiet { fill: var(--keepsake-quiet); opacity: .7; }
  .keepsake-chart .limit {
    fill: none;
    stroke: var(--keepsake-text);
    stroke-dasharray: 3 3;
    opacity: .6;
  }
  .keepsake-chart .ground { stroke: var(--keepsake-line); }
  .keepsake-chart .chosen { fill: var(--keepsake-text); opacity: .18; }
`;

const historyBytes = (row) => row.bank_bytes.reduce((sum, bytes) => sum + bytes, 0);
const keptShare = (row) => (row.full_tokens ? row.kept_tokens / row.full_tokens : 1);

/** Bytes in MiB; below 128 MiB with one digit after the point. */
function mib(bytes) {
  const digits = bytes < 2 ** 27 ? 1 : 0;
  const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return (bytes / 2 ** 20).toLocaleString(undefined, options);
}

/**
 * The plots, from top to bottom. `value(row)` is a chunk's bar, `words(row)` its text; a plot's top
 * is `top`, else a little above the largest `limit(row)`, which is drawn as a line, or value.
 */
const PLOTS = [
  {
    name: "memory",
    value: historyBytes,
    limit: (row) => row.allocated_bytes,
    words: (row) => {
      const [live, allocated] = [historyBytes(row), row.allocated_bytes].map(mib);
      return say("memory_value", { live, allocated });
    },
  },
  {
    name: "kept",
    value: keptShare,
    top: 1,
    words: (row) => say("kept_value", { kept: (100 * keptShare(row)).toFixed(1) }),
  },
  {
    name: "time",
    value: (row) => row.seconds,
    style: "quiet",
    words: (row) => say("time_value", { seconds: row.seconds.toFixed(2) }),
  },
];

/** SVG path of a chunk's bar, up to `height`, 0 to 1. */
const bar = (row, height) => `M${row.start_frame} 0v${-height}h${row.frames - GAP}V0z`;

/** SVG path of a line above the bars, with a step at each chunk. */
function steps(rows, height) {
  const parts = rows.map((row, i) => {
    return `${i ? "L" : "M"}${row.start_frame} ${-height(row)}h${row.frames}`;
  });
  return parts.join("");
}

function plot({ value, limit, top, style = "bars" }, frames, rows, chosen) {
  const most = top ?? (1.05 * Math.max(...rows.map(limit ?? value)) || 1);
  const bars = rows.map((row) => bar(row, value(row) / most)).join("");
  const line = limit ? steps(rows, (row) => limit(row) / most) : "";
  const inner = [
    `<path class="ground" d="M0 0H${frames}"/>`,
    `<path class="${style}" d="${bars}"/>`,
    line && `<path class="limit" d="${line}"/>`,
    chosen && `<path class="chosen" d="${bar(chosen, 1)}"/>`,
  ];
  return plotSvg(frames, inner.filter(Boolean).join(""));
}

function rangeWords(row) {
  return say("at_frames", { first: row.start_frame, last: row.start_frame + row.frames - 1 });
}

/** Draw a take's rows; the words are of the chunk under the pointer, else of the newest one. */
function draw(box) {
  const { frames, chunks } = box.take;
  const underPointer = (row) => {
    return row.start_frame <= box.pointed && box.pointed < row.start_frame + row.frames;
  };
  const chosen = chunks.find(underPointer);
  const row = chosen ?? chunks.at(-1);
  const sections = PLOTS.map((one, i) => {
    const section = document.createElement("section");
    section.innerHTML = `
      <p><span class="label"></span><span class="value"></span></p>
      ${plot(one, frames, chunks, chosen)}`;
    const label = chosen && i === 0 ? rangeWords(chosen) : say(one.name);
    section.querySelector(".label").textContent = label;
    section.querySelector(".value").textContent = one.words(row);
    return section;
  });
  box.replaceChildren(...sections);
}

/** Show a take, `{ frames, chunks }`, on a node. */
function show(node, take) {
  if (!take.chunks.length) return;
  const box = panel(node, "chart", HEIGHT, STYLE, "keepsake-plots");
  box.take = take;
  box.onpointermove ??= (event) => {
    const { left, width } = box.querySelector("svg").getBoundingClientRect();
    box.pointed = Math.floor(((event.clientX - left) / width) * box.take.frames);
    draw(box);
  };
  box.onpointerleave ??= () => {
    box.pointed = undefined;
    draw(box);
  };
  draw(box);
}

/** KV Memory Stats nodes that a sampler's output goes to. */
function statsNodes(node) {
  const links = node.outputs?.flatMap((output) => output.links ?? []) ?? [];
  const targets = links.map((link) => node.graph.getLink(link)?.target_id);
  const nodes = targets.map((id) => node.graph.getNodeById(id));
  return nodes.filter((target) => target?.comfyClass === STATS);
}

/** The take in work by the execution id of its node: `{ name, frames, rows }`. */
const running = new Map();

/** The take that a message is of. Its rows are numbered; those that are not here yet are holes. */
function takeOf({ node, file, frames }) {
  const name = file.filename;
  if (running.get(node)?.name !== name) running.set(node, { name, frames, rows: [] });
  return running.get(node);
}

/** Put the rows of a take that were sent before this page listened into their holes. */
async function fetchEarlierRows(take, file) {
  take.isFetched = true;
  const answer = await api.fetchApi(fileUrl(file), { cache: "no-store" });
  if (!answer.ok) return;
  const lines = (await answer.text()).split("\n").slice(0, -1); // the last one may be half written
  lines.forEach((line, number) => {
    take.rows[number] ??= JSON.parse(line);
  });
}

api.addEventListener("keepsake.chunk", async ({ detail }) => {
  const take = takeOf(detail);
  detail.chunks.forEach((row, i) => {
    take.rows[detail.first + i] = row;
  });
  if (take.rows[0] === undefined && !take.isFetched) await fetchEarlierRows(take, detail.file);
  const node = nodeOf(detail.node);
  if (!CHARTED.includes(node?.comfyClass) || running.get(detail.node) !== take) return;
  const shown = { frames: take.frames, chunks: take.rows.filter(Boolean) };
  for (const one of [node, ...statsNodes(node)]) show(one, shown);
});

onResult((name) => CHARTED.includes(name), async (node, { kv_stats_file: files }) => {
  const stats = files && (await valuesOf(node, files[0]));
  if (!stats) return;
  const chunks = stats.chunks.filter((row) => row.item === 0);
  show(node, { frames: stats.frames, chunks });
});
