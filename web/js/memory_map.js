import { api } from "../../../scripts/api.js";
import { panel, plotSvg } from "./panel.js";
import { fileUrl, onResult, valuesOf } from "./results.js";
import { say } from "./words.js";

// What was in memory of a take, and when. A moment is the making of a chunk. Pointing along the
// upper plot chooses a frame, along the lower one a moment: the upper plot shows all frames at that
// moment, the lower one that frame at all moments, the picture that frame at that moment.
//
// The data is `memory_map_preview` of host/show/memory_pictures.py, in the file that the result
// names; a chunk of it is [number, first latent frame, latent frames].

const HEIGHT = 316;
const GROUPS_HEIGHT = 36; // pixels: the rows of all head groups together
const GROUPS_SHOWN = 4; // more groups, such as one for each layer, are shown together
const READS_HEIGHT = 10; // the row of what the policy read
const MOMENTS_HEIGHT = 22; // the lower plot
const BAR_WIDTH = 0.9; // of a latent frame
const NOT_MADE_OPACITY = 0.15; // of the picture of a frame that the moment does not have yet
const DROPPED_COLOUR = [20, 20, 20]; // red, green and blue of the veil over dropped tokens
const TOKEN_CELLS = 2; // latent cells that a token has in each direction

const STYLE = `
  .keepsake-memory_map { cursor: ew-resize; }
  .keepsake-memory_map .detail {
    overflow: hidden;
    text-overflow: ellipsis;
    color: var(--keepsake-quiet);
  }
  .keepsake-memory_map .picture {
    position: relative;
    flex: 1;
    min-height: 0;
    align-self: center;
    max-width: 100%;
    border-radius: 3px;
    overflow: hidden;
    background-repeat: no-repeat;
  }
  .keepsake-memory_map canvas { position: absolute; top: 0; left: 0; image-rendering: pixelated; }
  .keepsake-memory_map svg { flex: none; }
  .keepsake-memory_map svg + svg { margin-top: 2px; }
  .keepsake-memory_map .kept { fill: var(--keepsake-data); }
  .keepsake-memory_map .read { fill: var(--keepsake-text); opacity: .8; }
  .keepsake-memory_map .made { fill: var(--keepsake-quiet); opacity: .25; }
  .keepsake-memory_map .at { fill: none; stroke: var(--keepsake-text); }
`;

const line = (name) => `
  <p class="${name}"><span class="words"></span><span class="detail"></span></p>`;
const BODY = `
  <div class="picture"><canvas></canvas></div>
  ${line("frame")}
  <div class="upper"></div>
  ${line("moment")}
  <div class="lower"></div>
  ${line("drops")}`;

const clamp = (value, most) => Math.min(most, Math.max(0, value));
const percent = (share, digits = 1) => (100 * share).toFixed(digits);
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** SVG path of a bar from `x` on. */
function bar(x, width, share) {
  return share ? `M${x} 0v${-share}h${BAR_WIDTH * width}v${share}z` : "";
}

/** A block of full height. */
function block(kind, x, width) {
  return `<rect class="${kind}" x="${x}" y="-1" width="${width}" height="1"/>`;
}

/**
 * The share of a frame's tokens that a head group held when a chunk was made; null before the frame
 * was made.
 */
function groupShare({ dropped, grid: [h, w], chunks }, group, frame, chunk) {
  const [number, first, count] = chunks[chunk];
  if (frame >= first + count) return null;
  const gone = dropped[group][frame].filter(([droppedAt]) => droppedAt <= number);
  return 1 - sum(gone.map(([, tokens]) => tokens)) / (h * w);
}

/** The same, over all heads. */
function keptShare(map, frame, chunk) {
  const { head_group_shares: shares } = map;
  return sum(shares.map((share, group) => share * groupShare(map, group, frame, chunk)));
}

/** The same, by row of the upper plot; null before the frame was made. */
function shownShares(map, frame, chunk) {
  const shares = map.head_group_shares.map((_, group) => groupShare(map, group, frame, chunk));
  if (shares.length <= GROUPS_SHOWN || shares[0] === null) return shares.slice(0, GROUPS_SHOWN);
  return [keptShare(map, frame, chunk)];
}

/**
 * Darken the tokens of a picture that were dropped when a chunk was made. `tokens` are the pixels
 * of the temp image in which 256 red + green is the number of the last chunk that could read a
 * token, plus one; `place` is the picture's in it, row by row.
 */
function darkenDropped(canvas, map, tokens, place, chunk) {
  const { grid: [h, w], head_group_shares: shares, dropped_brightness, columns, chunks } = map;
  const [number] = chunks[chunk];
  const left = (place % columns) * w;
  const top = Math.floor(place / columns) * shares.length * h; // a picture's groups lie below
  const veil = new ImageData(w, h);
  for (let cell = 0; cell < h * w; cell++) {
    const [y, x] = [Math.floor(cell / w), cell % w];
    const held = shares.map((share, group) => {
      const at = 4 * ((top + group * h + y) * tokens.width + left + x);
      return 256 * tokens.data[at] + tokens.data[at + 1] > number ? share : 0;
    });
    const opacity = (1 - dropped_brightness) * (1 - clamp(sum(held), 1));
    veil.data.set([...DROPPED_COLOUR, 255 * opacity], 4 * cell);
  }
  canvas.getContext("2d").putImageData(veil, 0, 0);
}

/** What a chunk read of an earlier frame; undefined for later ones, and where it read all. */
function readShare({ reads, chunks }, frame, chunk) {
  const [, first] = chunks[chunk];
  return reads[chunk] && frame < first ? (reads[chunk][frame] ?? 0) : undefined;
}

/** The upper plot: every frame at one moment, a row for each head group, and what was read. */
function framesPlot(map, frame, chunk) {
  const { chunks, reads, kept_by_frame } = map;
  const frames = kept_by_frame.length;
  const [, first, count] = chunks[chunk];
  const background = block("made", 0, first + count);
  const cursor = block("at", frame, 1);
  const shares = kept_by_frame.map((_, one) => shownShares(map, one, chunk));
  const rows = shares[0].map((_, row) => {
    const bars = shares.map((ofFrame, one) => bar(one, 1, ofFrame[row]));
    const kept = `<path class="kept" d="${bars.join("")}"/>`;
    return plotSvg(frames, background + kept + cursor, GROUPS_HEIGHT / shares[0].length);
  });
  if (reads.some(Boolean)) {
    const read = Object.entries(reads[chunk] ?? {});
    const bars = read.map(([one, share]) => bar(one, 1, share));
    rows.push(plotSvg(frames, `<path class="read" d="${bars.join("")}"/>`, READS_HEIGHT));
  }
  return rows.join("");
}

/** The lower plot: one frame at every moment. */
function momentsPlot(map, frame, chunk) {
  const { chunks, kept_by_frame } = map;
  const frames = kept_by_frame.length;
  const [, first, count] = chunks[chunk];
  const [, born] = chunks.find(([, start, size]) => frame < start + size);
  const bars = chunks.map(([, start, size], i) => {
    return bar(start, size, start + size > frame ? keptShare(map, frame, i) : 0);
  });
  const inner = [
    block("made", born, frames - born),
    `<path class="kept" d="${bars.join("")}"/>`,
    block("at", first, count),
  ];
  return plotSvg(frames, inner.join(""), MOMENTS_HEIGHT);
}

/** Number of the small picture that is nearest to a frame. */
function nearestPicture({ frames }, frame) {
  const distance = (i) => Math.abs(frames[i] - frame);
  return frames.reduce((best, _, i) => (distance(i) < distance(best) ? i : best), 0);
}

/** Let the picture show one of the sheet. */
function choosePicture(picture, { columns, rows }, place) {
  const position = (i, count) => (count > 1 ? (100 * i) / (count - 1) : 0);
  const x = position(place % columns, columns);
  const y = position(Math.floor(place / columns), rows);
  picture.style.backgroundPosition = `${x}% ${y}%`;
}

/** What was in memory of a frame, in words. */
function keptWords(map, frame, chunk) {
  const shares = shownShares(map, frame, chunk);
  if (shares[0] === null) return say("map_later");
  const digits = shares.length > 1 ? 0 : 1;
  return say("map_kept", { kept: shares.map((share) => percent(share, digits)).join(" | ") });
}

/** Before which frames tokens of a frame were dropped, in words. */
function dropsWords({ dropped, chunks }, frame) {
  const firstOf = new Map(chunks.map(([number, first]) => [number, first]));
  const numbers = dropped.flatMap((group) => group[frame]).map(([number]) => number);
  const firsts = numbers.map((number) => firstOf.get(number)).filter((one) => one !== undefined);
  const frames = [...new Set(firsts)].sort((a, b) => a - b).join(", ");
  return firsts.length ? say("map_dropped", { frames }) : say("map_whole");
}

/** Draw the chosen frame at the chosen moment. */
function draw(box) {
  const { map, frame, chunk, tokens } = box;
  const [, first, count] = map.chunks[chunk];
  const read = readShare(map, frame, chunk);
  const write = (selector, text) => {
    box.querySelector(selector).textContent = text;
  };
  write(".frame .words", say("map_frame", { frame }));
  write(".frame .detail", keptWords(map, frame, chunk));
  write(".moment .words", say("map_moment", { first, last: first + count - 1 }));
  write(".moment .detail", read === undefined ? "" : say("map_read", { read: percent(read) }));
  write(".drops .detail", dropsWords(map, frame));
  box.querySelector(".upper").innerHTML = framesPlot(map, frame, chunk);
  box.querySelector(".lower").innerHTML = momentsPlot(map, frame, chunk);

  const picture = box.querySelector(".picture");
  const place = nearestPicture(map, frame);
  choosePicture(picture, map, place);
  picture.style.opacity = frame < first + count ? 1 : NOT_MADE_OPACITY;
  if (tokens) darkenDropped(picture.querySelector("canvas"), map, tokens, place, chunk);
}

const tempFile = (file) => api.apiURL(fileUrl(file));

/** The pixels of a temp image, as ImageData. */
async function pixels(file) {
  const picture = new Image();
  picture.src = tempFile(file);
  await picture.decode();
  const context = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
  context.drawImage(picture, 0, 0);
  return context.getImageData(0, 0, picture.width, picture.height);
}

/** Fill a box with a new map: its last chunk, and the frame in the middle. */
function build(box, map) {
  const { sheet, columns, rows, aspect, grid: [h, w], latent_size: [height, width] } = map;
  box.innerHTML = BODY;
  Object.assign(box.querySelector(".picture").style, {
    aspectRatio: aspect,
    backgroundImage: `url("${tempFile(sheet)}")`,
    backgroundSize: `${columns * 100}% ${rows * 100}%`,
  });
  const canvas = box.querySelector("canvas");
  [canvas.width, canvas.height] = [w, h];
  // The last tokens of an odd latent size reach over the picture's edge.
  canvas.style.width = `${(100 * TOKEN_CELLS * w) / width}%`;
  canvas.style.height = `${(100 * TOKEN_CELLS * h) / height}%`;
  box.map = map;
  box.tokens = undefined;
  box.frame = Math.floor(map.kept_by_frame.length / 2);
  box.chunk = map.chunks.length - 1;
  pixels(map.tokens).then((data) => {
    if (box.map !== map) return; // a newer result has come
    box.tokens = data;
    draw(box);
  });
}

/** Choose the frame or the moment under the pointer. */
function choose(box, { clientX, clientY }) {
  const { map } = box;
  const frames = map.kept_by_frame.length;
  const { left, width } = box.querySelector(".lower").getBoundingClientRect();
  const at = clamp(Math.floor(((clientX - left) / width) * frames), frames - 1);
  if (clientY < box.querySelector(".moment").getBoundingClientRect().top) box.frame = at;
  else box.chunk = Math.max(0, map.chunks.findLastIndex(([, first]) => first <= at));
  draw(box);
}

onResult((name) => name === "KeepsakeKVMemoryMap", async (node, { memory_map_file: files }) => {
  const map = files && (await valuesOf(node, files[0]));
  if (!map) return;
  const box = panel(node, "memory_map", HEIGHT, STYLE, "keepsake-plots");
  if (box.file === files[0].filename) return; // sent again, of a node that did not run again
  box.file = files[0].filename;
  build(box, map);
  draw(box);
  box.onpointermove = (event) => choose(box, event);
});
