import { api } from "../../../scripts/api.js";
import { panel } from "./panel.js";
import { onResult } from "./results.js";
import { say } from "./words.js";

// What was in memory of a take, and when. A moment is a chunk in the making. Pointing along the upper plot chooses a frame, along the lower one
// a moment: the upper plot shows all frames at that moment, the lower one that frame at all moments, the picture that frame at that moment.

// In the frontend's own colours, so that it follows the theme.
const STYLE = `
  .keepsake-memory_map { display: flex; flex-direction: column; gap: 4px; padding: 6px 8px; box-sizing: border-box; overflow: hidden;
    border-radius: 4px; background: var(--comfy-input-bg); color: var(--input-text); font: 11px/1.3 var(--font-inter, sans-serif); cursor: ew-resize; }
  .keepsake-memory_map p { display: flex; justify-content: space-between; gap: 6px; margin: 0; white-space: nowrap; }
  .keepsake-memory_map p span + span { color: var(--descrip-text); overflow: hidden; text-overflow: ellipsis; }
  .keepsake-memory_map .picture { position: relative; flex: 1; min-height: 0; align-self: center; max-width: 100%; border-radius: 3px; overflow: hidden; background-repeat: no-repeat; }
  .keepsake-memory_map canvas { position: absolute; top: 0; left: 0; image-rendering: pixelated; }
  .keepsake-memory_map svg { width: 100%; flex: none; display: block; }
  .keepsake-memory_map svg + svg { margin-top: 2px; }
  .keepsake-memory_map .kept { fill: var(--p-primary-color, #4c9be8); }
  .keepsake-memory_map .read { fill: var(--input-text); opacity: .8; }
  .keepsake-memory_map .made { fill: var(--descrip-text); opacity: .25; }
  .keepsake-memory_map .at { fill: none; stroke: var(--input-text); vector-effect: non-scaling-stroke; }
`;
const ROWS = 36, READS = 10, MOMENTS = 22;       // heights in pixels: of all head groups' rows, of what is read, of the lower plot

const clamp = (value, most) => Math.min(most, Math.max(0, value));
const bar = (x, width, share) => (share ? `M${x} 0v${-share}h${0.9 * width}v${share}z` : "");
const svg = (frames, height, inner) => `<svg viewBox="0 -1 ${frames} 1" preserveAspectRatio="none" style="height:${height}px">${inner}</svg>`;
const block = (kind, x, width) => `<rect class="${kind}" x="${x}" y="-1" width="${width}" height="1"/>`;

/** The share of a frame's tokens that a head group held when a chunk was made; null before the frame was. */
function held({ dropped, grid, chunks }, group, frame, chunk) {
  const [number, first, count] = chunks[chunk];
  if (frame >= first + count) return null;
  return 1 - dropped[group][frame].reduce((gone, [at, tokens]) => (at <= number ? gone + tokens : gone), 0) / (grid[0] * grid[1]);
}

/** Of all heads. */
const kept = (map, frame, chunk) => map.head_group_shares.reduce((sum, share, group) => sum + share * held(map, group, frame, chunk), 0);

/** Darkens the tokens of a picture that were gone when a chunk was made; `held` are the pixels of the temp image that tells it. */
function dim(canvas, { grid: [h, w], head_group_shares: shares, dropped_brightness, columns, chunks }, tokens, place, chunk) {
  const out = new ImageData(w, h);
  for (let cell = 0; cell < h * w; cell++) {
    const x = (place % columns) * w + (cell % w);
    const lit = shares.reduce((sum, share, group) => {
      const at = 4 * (((Math.floor(place / columns) * shares.length + group) * h + Math.floor(cell / w)) * tokens.width + x);
      return sum + (256 * tokens.data[at] + tokens.data[at + 1] > chunks[chunk][0] ? share : 0);
    }, 0);
    out.data.set([20, 20, 20, 255 * (1 - dropped_brightness) * (1 - clamp(lit, 1))], 4 * cell);
  }
  canvas.getContext("2d").putImageData(out, 0, 0);
}

/** The plots for a frame and a moment. */
function plots(map, frame, chunk) {
  const { head_group_shares: groups, chunks, reads, kept_by_frame } = map, frames = kept_by_frame.length, all = [...kept_by_frame.keys()];
  const [, first, count] = chunks[chunk], cursor = block("at", frame, 1), made = block("made", 0, first + count);
  const rows = groups.map((_, group) => svg(frames, ROWS / groups.length,
    `${made}<path class="kept" d="${all.map((one) => bar(one, 1, held(map, group, one, chunk))).join("")}"/>${cursor}`));
  const read = reads.some((row) => row.length)
    ? svg(frames, READS, `<path class="read" d="${reads[chunk].map((share, one) => bar(one, 1, share)).join("")}"/>`) : "";
  const life = chunks.map(([, start, size], i) => bar(start, size, start + size > frame ? kept(map, frame, i) : 0)).join("");
  const born = chunks.find(([, start, size]) => frame < start + size)[1];
  return [rows.join("") + read, svg(frames, MOMENTS, `${block("made", born, frames - born)}<path class="kept" d="${life}"/>${block("at", first, count)}`)];
}

/** Draw the chosen frame at the chosen moment. */
function draw(box) {
  const { map, frame, chunk, tokens } = box, { frames, columns, rows, reads, chunks } = map;
  const place = frames.reduce((best, one, i) => (Math.abs(one - frame) < Math.abs(frames[best] - frame) ? i : best), 0);
  const part = (i, count) => (count > 1 ? (100 * i) / (count - 1) : 0);
  const [picture, told, upper, moment, lower, gone] = box.children, percent = (share, digits = 1) => (100 * share).toFixed(digits);
  picture.style.backgroundPosition = `${part(place % columns, columns)}% ${part(Math.floor(place / columns), rows)}%`;
  [upper.innerHTML, lower.innerHTML] = plots(map, frame, chunk);
  const [, first, count] = chunks[chunk], later = frame >= first + count, groups = map.head_group_shares.map((_, group) => held(map, group, frame, chunk));
  told.firstChild.textContent = say("map_frame", { frame });
  told.lastChild.textContent = later ? say("map_later")
    : say("map_kept", { kept: groups.length > 1 ? groups.map((share) => percent(share, 0)).join(" | ") : percent(groups[0]) });
  moment.firstChild.textContent = say("map_moment", { first, last: first + count - 1 });
  moment.lastChild.textContent = frame < reads[chunk].length ? say("map_read", { read: percent(reads[chunk][frame]) }) : "";
  const drops = map.dropped.flatMap((group) => group[frame]).map(([number]) => chunks.find(([one]) => one === number)?.[1]).filter((start) => start !== undefined);
  gone.lastChild.textContent = say(drops.length ? "map_dropped" : "map_whole", { frames: [...new Set(drops)].sort((a, b) => a - b).join(", ") });
  picture.style.opacity = later ? 0.15 : 1;
  if (tokens) dim(picture.firstChild, map, tokens, place, chunk);
}

async function pixels(url) {
  const picture = new Image();
  picture.src = url;
  await picture.decode();
  const context = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
  context.drawImage(picture, 0, 0);
  return context.getImageData(0, 0, picture.width, picture.height);
}

function build(box, map) {
  const { sheet, tokens, columns, rows, aspect, grid: [h, w], latent_size: [height, width], chunks, kept_by_frame } = map;
  const file = (one) => api.apiURL(`/view?${new URLSearchParams(one)}`);
  const words = "<p><span></span><span></span></p><div></div>";
  box.innerHTML = `<div class="picture"><canvas></canvas></div>${words}${words}<p><span></span><span></span></p>`;
  const [picture] = box.children, [canvas] = picture.children;
  Object.assign(picture.style, { aspectRatio: aspect, backgroundImage: `url("${file(sheet)}")`, backgroundSize: `${columns * 100}% ${rows * 100}%` });
  [canvas.width, canvas.height] = [w, h];
  Object.assign(canvas.style, { width: `${(200 * w) / width}%`, height: `${(200 * h) / height}%` });       // the last tokens of an odd size stand out
  Object.assign(box, { map, tokens: undefined, frame: Math.floor(kept_by_frame.length / 2), chunk: chunks.length - 1 });
  pixels(file(tokens)).then((data) => {
    if (box.map !== map) return;             // a newer result has come
    box.tokens = data;
    draw(box);
  });
}

onResult((name) => name === "KeepsakeKVMemoryMap", (node, { memory_map }) => {
  if (!memory_map) return;
  const box = panel(node, "memory_map", 316, STYLE), [map] = memory_map;
  build(box, map);
  draw(box);
  box.onpointermove = ({ clientX, clientY }) => {
    const { left, width } = box.children[4].getBoundingClientRect(), frames = map.kept_by_frame.length;
    const at = clamp(Math.floor(((clientX - left) / width) * frames), frames - 1);
    if (clientY < box.children[3].getBoundingClientRect().top) box.frame = at;
    else box.chunk = Math.max(0, map.chunks.findLastIndex(([, first]) => first <= at));
    draw(box);
  };
});
