// A timeline: drawn, walked by keys, buttons and pointer, and in numbers.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { useWidth } from "./chart.js";
import { Table } from "./controls.js";
import { Interval, significant } from "./numbers.js";

// Where the blocks of a timeline lie: one lane per thread or stream and depth, one mode's lanes below the other's.

const ROW = 20;
const HEAD = 26;
const BELOW = 8;

/**
 * `{lanes, heads, height}` of the finding's `tracks`. A lane is `{y, blocks}`, each block with its place in the
 * track; a head is the text above the lanes of a mode's host, or of one of its device's streams.
 */
function laneLayout(tracks) {
  const lanes = [];
  const heads = [];
  let y = 0;
  tracks.forEach((track, number) => {
    let above = null;
    for (const lane of lanesOf(track)) {
      if (lane.head !== above) {
        heads.push({ text: `${track.mode} · ${lane.head}`, y: y + HEAD - 8 });
        y += HEAD;
        above = lane.head;
      }
      lanes.push({ ...lane, track: number, y });
      y += ROW;
    }
    y += BELOW;
  });
  return { lanes, heads, height: y };
}

function lanesOf(track) {
  // The step's own thread, that of its mark, stands first; others call the device's runtime beside it.
  const own = track.blocks[0].row;
  const found = new Map();
  track.blocks.forEach((block, place) => {
    const key = [block.lane === "device" ? 1 : 0, block.row === own ? 0 : 1, block.row, block.depth];
    const name = key.join("/");
    if (!found.has(name)) found.set(name, { key, head: headOf(block, own), blocks: [] });
    found.get(name).blocks.push({ ...block, place });
  });
  return [...found.values()].sort((a, b) => compare(a.key, b.key));
}

function headOf(block, own) {
  if (block.lane === "device") return `device, stream ${block.row}`;
  return block.row === own ? "host" : `host, thread ${block.row}`;
}

const compare = (a, b) => a.map((value, place) => value - b[place]).find((difference) => difference !== 0) ?? 0;

// A linear axis: where its ticks lie.

/** Round values within [from, to], about `count` of them, as distances of 1, 2 or 5 times a power of ten. */
function ticks(from, to, count) {
  const rough = (to - from) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const first = Math.ceil(from / step - 1e-9);
  const last = Math.floor(to / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, place) => (first + place) * step);
}

// The stretch of a time axis that is shown: `[from, to]` within `[0, end]`, as numbers of one unit.

const SHORTEST_SHARE = 1 / 5000;

/** `span` moved and shortened so that it lies within the axis. */
function within([from, to], end) {
  const length = Math.min(Math.max(to - from, end * SHORTEST_SHARE), end);
  const begin = Math.min(Math.max(from, 0), end - length);
  return [begin, begin + length];
}

/** `factor` below 1 shows less, in more detail; what lies at `at` stays where it is. */
const zoomed = ([from, to], factor, end, at = (from + to) / 2) =>
  within([at - (at - from) * factor, at + (to - at) * factor], end);

/** Moved by `share` of its own length. */
const moved = ([from, to], share, end) => within([from + share * (to - from), to + share * (to - from)], end);

/** The least move that shows all of `[begin, finish]`, with some room on both sides. */
function showing(span, begin, finish, end) {
  const length = Math.max(span[1] - span[0], 1.2 * (finish - begin));
  if (begin >= span[0] && finish <= span[1]) return span;
  const middle = (begin + finish) / 2;
  return within([middle - length / 2, middle + length / 2], end);
}

// The drawing of a timeline: an axis, and the lanes of each mode's host and device, over the span that is shown.

const AXIS = 26;
const BAR = ROW - 3;
const LETTER = 6.7; // CSS pixels of a letter in a block
const THINNEST = 0.6;
const DRAG = 5; // CSS pixels from which a press is a drag
const TICK = 110; // CSS pixels between two ticks, about
const WHEEL = 0.7;

/**
 * `span` of `[0, end]`, in µs, is shown; `setSpan` changes it, by a drag or the wheel. `pressed(event)` takes the keys,
 * `pick(track, place)` the block that was pressed. `picked`: the block that is marked, or undefined.
 */
function TrackDrawing({ tracks, span, end, setSpan, pressed, pick, picked }) {
  const [element, width] = useWidth();
  const layout = useMemo(() => laneLayout(tracks), [tracks]);
  const perPixel = (span[1] - span[0]) / width;
  const at = (event) => span[0] + (event.clientX - element.current.getBoundingClientRect().left) * perPixel;
  useWheel(element, (event) => setSpan(zoomed(span, event.deltaY < 0 ? WHEEL : 1 / WHEEL, end, at(event))));
  const dragged = ([from, to]) => setSpan(within([from, to], end));
  const [drag, handlers] = useDrag(at, DRAG * perPixel, dragged, (target) => {
    const { track, place } = target.dataset;
    if (place !== undefined) pick(Number(track), Number(place));
  });
  const height = layout.height + AXIS;
  return html`<div class="drawing" ref=${element} tabindex="0" role="group" aria-label=${labelOf(span)}
    data-from=${span[0]} data-to=${span[1]} onKeyDown=${pressed}>
    ${width > 0 && html`<svg width=${width} height=${height} aria-hidden="true" ...${handlers} onDblClick=${() => setSpan([0, end])}>
      <${Axis} span=${span} width=${width} height=${height} />
      ${layout.heads.map(({ text, y }) => html`<text class="head" x="4" y=${y + AXIS}>${text}</text>`)}
      ${layout.lanes.map((lane) => html`<${Lane} ...${{ lane, span, width, picked }} key=${lane.y} />`)}
      ${drag && html`<rect class="dragged" y="0" height=${height} x=${(drag[0] - span[0]) / perPixel} width=${(drag[1] - drag[0]) / perPixel} />`}
    </svg>`}
  </div>`;
}

const labelOf = ([from, to]) => `Timeline from ${significant(from)} to ${significant(to)} µs`;

/** Ctrl with the wheel calls `turned`. By a listener of its own: Preact's could not keep the page from being zoomed. */
function useWheel(element, turned) {
  const newest = useRef(null);
  newest.current = turned;
  useEffect(() => {
    const { current } = element;
    const listen = (event) => event.ctrlKey && (event.preventDefault(), newest.current(event));
    current.addEventListener("wheel", listen, { passive: false });
    return () => current.removeEventListener("wheel", listen);
  }, []);
}

/** `[span of the drag or null, handlers]`; a press that does not move by `least` is `onPress(target)`. */
function useDrag(at, least, onDrag, onPress) {
  const [drag, setDrag] = useState(null);
  const sorted = drag && [Math.min(...drag), Math.max(...drag)];
  const released = (event) => {
    setDrag(null);
    if (drag === null) return;
    const [from, to] = [Math.min(drag[0], at(event)), Math.max(drag[0], at(event))];
    if (to - from > least) onDrag([from, to]);
    else onPress(event.target);
  };
  const handlers = {
    onPointerDown: (event) => setDrag([at(event), at(event)]),
    onPointerMove: (event) => drag && setDrag([drag[0], at(event)]),
    onPointerUp: released,
    onPointerLeave: () => setDrag(null),
  };
  return [sorted, handlers];
}

function Axis({ span, width, height }) {
  const place = (us) => ((us - span[0]) / (span[1] - span[0])) * width;
  return ticks(span[0], span[1], Math.max(2, width / TICK)).map(
    (us) => html`<g key=${us}>
      <line class="grid" x1=${place(us)} x2=${place(us)} y1=${AXIS - 8} y2=${height} />
      <text class="tick" x=${place(us) + 3} y="13">${significant(us, 4)}${us === 0 ? " µs" : ""}</text>
    </g>`,
  );
}

function Lane({ lane, span, width, picked }) {
  const { track, y, blocks } = lane;
  const isPicked = (place) => picked?.track === track && picked.place === place;
  const seen = blocks.filter(({ begin_us, duration_us }) => begin_us <= span[1] && begin_us + duration_us >= span[0]);
  return seen.map(
    (block) => html`<${Block} ...${{ block, track, span, width }} y=${y + AXIS} picked=${isPicked(block.place)} key=${block.place} />`,
  );
}

function Block({ block, track, y, span, width, picked }) {
  const { name, kind, place, begin_us, duration_us } = block;
  const scale = width / (span[1] - span[0]);
  const from = Math.max(0, (begin_us - span[0]) * scale);
  const long = Math.max(THINNEST, Math.min(width, (begin_us + duration_us - span[0]) * scale) - from);
  const fits = Math.floor((long - 6) / LETTER);
  return html`<g>
    <rect class="block ${kind}${picked ? " chosen" : ""}" x=${from} y=${y} width=${long} height=${BAR} data-track=${track}
      data-place=${place} />
    ${fits >= 3 && html`<text class="name" x=${from + 3} y=${y + BAR - 5}>${shortened(name, fits)}</text>`}
  </g>`;
}

function shortened(name, letters) {
  const own = name.replace("aten::", "");
  return own.length <= letters ? own : `${own.slice(0, letters - 1)}…`;
}

// A timeline to zoom and walk by keys, buttons and pointer; a block that is picked is written out below it.

/** The kinds of blocks, in the legend's order; their colours stand in studies.css. */
const KINDS = {
  mark: "the step",
  operator: "operator call",
  compiled: "compiled code",
  launch: "launch call",
  runtime: "other CUDA call",
  kernel: "kernel",
  copy: "copy or fill",
};

const BUTTONS = {
  in: "Zoom in",
  out: "Zoom out",
  earlier: "Earlier",
  later: "Later",
  all: "Whole step",
  previous: "Previous block",
  next: "Next block",
};
const KEYS = {
  "+": "in",
  "=": "in",
  "-": "out",
  ArrowLeft: "earlier",
  ArrowRight: "later",
  Home: "all",
  n: "next",
  p: "previous",
};

/**
 * `tracks` of a timeline finding; give each finding a `key` of its own. Times are microseconds since each step began,
 * under the profiler. Blocks are walked through in the order in which they began, one mode after the other.
 */
export function Tracks({ tracks }) {
  const end = Math.max(...tracks.map((track) => track.profiled_seconds * 1e6));
  const order = useMemo(() => tracks.flatMap(placedBlocks), [tracks]);
  const [span, setSpan] = useState([0, end]);
  const [picked, setPicked] = useState(null);
  const walk = (by) => {
    const place = picked === null ? 0 : (picked + by + order.length) % order.length;
    const { begin_us: begin, duration_us: duration } = order[place];
    setPicked(place);
    setSpan(showing(span, begin, begin + duration, end));
  };
  const actions = {
    in: () => setSpan(zoomed(span, 0.5, end)),
    out: () => setSpan(zoomed(span, 2, end)),
    earlier: () => setSpan(moved(span, -0.25, end)),
    later: () => setSpan(moved(span, 0.25, end)),
    all: () => setSpan([0, end]),
    previous: () => walk(-1),
    next: () => walk(1),
  };
  const pressed = (event) => {
    const action = event.ctrlKey || event.altKey || event.metaKey ? undefined : KEYS[event.key];
    if (action) (event.preventDefault(), actions[action]());
  };
  const pick = (track, place) =>
    setPicked(order.findIndex((block) => block.track === track && block.place === place));
  return html`<div class="timeline">
    <${Legend} tracks=${tracks} />
    <p class="row">${Object.entries(BUTTONS).map(([action, text]) => button(text, actions[action]))}</p>
    <${TrackDrawing} ...${{ tracks, span, end, setSpan, pressed, pick }} picked=${order[picked]} />
    <p class="picked" role="status">
      ${picked === null ? `${order.length} blocks: press one, or walk through them.` : blockText(order[picked], tracks)}
    </p>
    <p class="note">
      Keys, once the drawing has the focus: + and − zoom, arrows move, Home shows the whole step, n and p walk through
      the blocks. Drag over a stretch to zoom into it; Ctrl with the wheel zooms at the pointer.
    </p>
  </div>`;
}

const placedBlocks = ({ blocks }, track) => blocks.map((block, place) => ({ ...block, track, place }));
const button = (text, act) => html`<button type="button" onClick=${act} key=${text}>${text}</button>`;

function Legend({ tracks }) {
  const drawn = new Set(tracks.flatMap(({ blocks }) => blocks.map(({ kind }) => kind)));
  const kinds = Object.keys(KINDS).filter((kind) => drawn.has(kind));
  return html`<ul class="legend" aria-label="Kinds of blocks">
    ${kinds.map((kind) => html`<li key=${kind}><span class="swatch block-${kind}"></span>${KINDS[kind]}</li>`)}
  </ul>`;
}

function blockText({ name, kind, lane, row, depth, track, begin_us, duration_us }, tracks) {
  const where = lane === "device" ? `device, stream ${row}` : `host, depth ${depth}`;
  const when = `${significant(duration_us)} µs from ${significant(begin_us, 4)} µs on`;
  return `${name}: ${KINDS[kind]} of ${tracks[track].mode}, ${where}; ${when}`;
}

// A timeline in numbers: the steps without a profiler, the tax on each, and what fusing bought.

/** The share of a track's step in which no kernel ran, or why it is not known. */
export function Tax({ track }) {
  if (track.tax === null) return html`<${Interval} value=${null} why=${track.no_tax} />`;
  const { value, low, high, samples } = track.tax.fraction;
  const percent = (share) => (share === null ? null : 100 * share);
  return html`<${Interval} value=${percent(value)} low=${percent(low)} high=${percent(high)} samples=${samples} unit="%" />`;
}

/** How many times as fast the second track's step is. */
export function Speedup({ finding }) {
  const { speedup, tracks } = finding;
  const [first, second] = tracks;
  return html`<section class="card" aria-label="speed-up">
    <h2>${second.mode} against ${first.mode}</h2>
    <p><${Interval} ...${speedup} unit="×" large /></p>
    <p>as fast, by ${speedup.samples} paired rounds. ${fusedText(first, second)}</p>
  </section>`;
}

const isCompiled = (track) => track.blocks.some(({ kind }) => kind === "compiled");

function fusedText(first, second) {
  const counted = [`${first.operators} calls into the dispatcher against ${second.operators}`];
  if (first.kernels !== null && second.kernels !== null) counted.push(`${first.kernels} kernels against ${second.kernels}`);
  return `${fusing(isCompiled(first), isCompiled(second))}: ${counted.join(", ")}.`;
}

function fusing(first, second) {
  if (first === second) return first ? "Both are fused" : "Neither is fused";
  return first ? "Fused against unfused" : "Unfused against fused";
}

const COLUMNS = [
  { key: "mode", title: "mode" },
  { key: "effective", title: "runs as" },
  { key: "wall", title: "step", numeric: true, show: ({ wall }) => html`<${Interval} ...${wall} />` },
  { key: "tax", title: "tax", show: (track) => html`<${Tax} track=${track} />` },
  { key: "operators", title: "calls", numeric: true },
  { key: "launches", title: "launches", numeric: true },
  { key: "kernels", title: "kernels", numeric: true },
  { key: "stretch", title: "under the profiler", numeric: true, show: ({ stretch }) => `× ${significant(stretch)}` },
];

/** Both steps as a table, and what its numbers are. */
export function Summary({ finding }) {
  const { tracks, device } = finding;
  const hows = new Set(tracks.map((track) => track.tax?.how ?? `not known: ${track.no_tax}`));
  const dash = device === "cpu" ? "a CPU launches nothing" : "the profiler could not count it";
  return html`<${Table} caption="Both steps, measured without the profiler" columns=${COLUMNS} rows=${tracks} />
    <p class="note">
      Blocks are times under the profiler, which lengthens a step by the factor in the last column: they show the order
      of events. Tax: ${[...hows].join("; ")}. A dash: ${dash}.
    </p>`;
}
