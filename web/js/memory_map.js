import { api } from "../../../scripts/api.js";
import { panel } from "./panel.js";
import { onResult } from "./results.js";
import { say } from "./words.js";

// What is still in memory of a take: point along its frames to see each one's picture, kept tokens lit.

// In the frontend's own colours, so that it follows the theme.
const STYLE = `
  .keepsake-memory_map { display: flex; flex-direction: column; gap: 4px; padding: 6px 8px; box-sizing: border-box; overflow: hidden;
    border-radius: 4px; background: var(--comfy-input-bg); color: var(--input-text); font: 11px/1.3 var(--font-inter, sans-serif); cursor: ew-resize; }
  .keepsake-memory_map p { display: flex; justify-content: space-between; margin: 0; white-space: nowrap; }
  .keepsake-memory_map .picture { flex: 1; min-height: 0; align-self: center; max-width: 100%; border-radius: 3px; background-repeat: no-repeat; image-rendering: pixelated; }
  .keepsake-memory_map svg { height: 36px; width: 100%; display: block; }
  .keepsake-memory_map .kept { fill: var(--p-primary-color, #4c9be8); }
  .keepsake-memory_map .gone { fill: var(--descrip-text); opacity: .25; }
  .keepsake-memory_map .at { fill: none; stroke: var(--input-text); vector-effect: non-scaling-stroke; }
`;

function build(box, map) {
  const { kept_by_frame: kept, sheet, columns, rows, aspect } = map;
  const bars = kept.map((share, frame) => `M${frame} 0V${-share}h.9V0z`).join("");
  box.innerHTML = `<div class="picture"></div><p><span></span><span></span></p>
    <svg viewBox="0 -1 ${kept.length} 1" preserveAspectRatio="none"><path class="gone" d="M0 0V-1H${kept.length}V0z"/><path class="kept" d="${bars}"/>
    <rect class="at" y="-1" width="1" height="1"/></svg>`;
  const picture = box.firstChild;
  picture.style.aspectRatio = aspect;
  picture.style.backgroundImage = `url("${api.apiURL(`/view?${new URLSearchParams(sheet)}`)}")`;
  picture.style.backgroundSize = `${columns * 100}% ${rows * 100}%`;
}

/** Show a latent frame: its share, and the nearest picture that there is. */
function scrub(box, { frames, columns, rows, kept_by_frame: kept }, frame) {
  const place = frames.reduce((best, one, i) => (Math.abs(one - frame) < Math.abs(frames[best] - frame) ? i : best), 0);
  const part = (i, count) => (count > 1 ? (100 * i) / (count - 1) : 0);
  box.firstChild.style.backgroundPosition = `${part(place % columns, columns)}% ${part(Math.floor(place / columns), rows)}%`;
  const [at, share] = box.querySelectorAll("span");
  at.textContent = say("map_frame", { frame });
  share.textContent = say("map_kept", { kept: (100 * kept[frame]).toFixed(1) });
  box.querySelector(".at").setAttribute("x", frame);
}

onResult((name) => name === "KeepsakeKVMemoryMap", (node, { memory_map }) => {
  if (!memory_map) return;
  const box = panel(node, "memory_map", 240, STYLE);
  const [map] = memory_map;
  const last = map.kept_by_frame.length - 1;
  build(box, map);
  scrub(box, map, Math.round(last / 2));
  box.onpointermove = (event) => {
    const { left, width } = box.lastElementChild.getBoundingClientRect();
    scrub(box, map, Math.min(last, Math.max(0, Math.floor(((event.clientX - left) / width) * (last + 1)))));
  };
});
