// A timeline to zoom and walk by keys, buttons and pointer; a block that is picked is written out below it.

import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { significant } from "./numbers.js";
import { moved, showing, zoomed } from "./span.js";
import { TrackDrawing } from "./track-drawing.js";

/** The kinds of blocks, in the legend's order; their colours stand in studies.css. */
export const KINDS = {
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
