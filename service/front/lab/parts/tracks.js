// A timeline drawn: the lanes of each mode on one axis, to zoom and walk by keys, buttons and pointer.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { ticks } from "./axis.js";
import { useWidth } from "./chart.js";
import { ROW, laneLayout } from "./lanes.js";
import { significant } from "./numbers.js";
import { moved, showing, within, zoomed } from "./span.js";

/** The kinds of blocks, in the legend's order; their colours stand in studies.css. */
export const KINDS = {
  mark: "the step", operator: "operator call", compiled: "compiled code", launch: "launch call",
  runtime: "other CUDA call", kernel: "kernel", copy: "copy or fill",
};

const AXIS = 26;
const LETTER = 6.7; // CSS pixels of a letter in a block
const DRAG = 5; // CSS pixels from which a press is a drag

const KEYS = {
  "+": "in", "=": "in", "-": "out", ArrowLeft: "earlier", ArrowRight: "later", Home: "all", n: "next", p: "previous",
};
const BUTTONS = { in: "Zoom in", out: "Zoom out", earlier: "Earlier", later: "Later", all: "Whole step", previous: "Previous block", next: "Next block" };

/**
 * `tracks` of a timeline finding; give each finding a `key` of its own. Times are microseconds since each step began,
 * under the profiler. Blocks are walked through in the order in which they began, one mode after the other.
 */
export function Tracks({ tracks }) {
  const end = Math.max(...tracks.map((track) => track.profiled_seconds * 1e6));
  const layout = useMemo(() => laneLayout(tracks), [tracks]);
  const order = useMemo(() => tracks.flatMap(({ blocks }, track) => blocks.map((block, place) => ({ ...block, track, place }))), [tracks]);
  const [span, setSpan] = useState([0, end]);
  const [picked, setPicked] = useState(null);
  const pick = (place) => {
    const block = order[place];
    setPicked(place);
    setSpan(showing(span, block.begin_us, block.begin_us + block.duration_us, end));
  };
  const step = (by) => pick(picked === null ? 0 : (picked + by + order.length) % order.length);
  const actions = {
    in: () => setSpan(zoomed(span, 0.5, end)), out: () => setSpan(zoomed(span, 2, end)), all: () => setSpan([0, end]),
    earlier: () => setSpan(moved(span, -0.25, end)), later: () => setSpan(moved(span, 0.25, end)),
    next: () => step(1), previous: () => step(-1),
  };
  const pressed = (event) => {
    const action = event.ctrlKey || event.altKey || event.metaKey ? undefined : KEYS[event.key];
    if (action) (event.preventDefault(), actions[action]());
  };
  const find = (track, place) => order.findIndex((block) => block.track === track && block.place === place);
  return html`<div class="timeline">
    <${Legend} tracks=${tracks} />
    <p class="row">${Object.entries(BUTTONS).map(([action, text]) => html`<button type="button" key=${action} onClick=${actions[action]}>${text}</button>`)}</p>
    <${Drawing} ...${{ layout, span, end, setSpan, pressed }} picked=${order[picked]} onPick=${(track, place) => setPicked(find(track, place))} />
    <p class="picked" role="status">${picked === null ? `${order.length} blocks. Pick one, or walk through them with n and p.` : textOf(order[picked], tracks)}</p>
    <p class="note">Keys, once the drawing has the focus: + and − zoom, arrows move, Home shows the whole step, n and p walk through the blocks. Drag over a stretch to zoom into it; Ctrl with the wheel zooms at the pointer.</p>
  </div>`;
}

function Drawing({ layout, span, end, setSpan, pressed, picked, onPick }) {
  const [element, width] = useWidth();
  const [drag, setDrag] = useState(null);
  const perPixel = (span[1] - span[0]) / width;
  const at = (event) => span[0] + (event.clientX - element.current.getBoundingClientRect().left) * perPixel;
  const wheel = useRef(null);
  wheel.current = (event) => event.ctrlKey && (event.preventDefault(), setSpan(zoomed(span, event.deltaY < 0 ? 0.7 : 1 / 0.7, end, at(event))));
  // Preact's own handler could not keep the browser from zooming the page.
  useEffect(() => {
    const turned = (event) => wheel.current(event);
    element.current.addEventListener("wheel", turned, { passive: false });
    return () => element.current?.removeEventListener("wheel", turned);
  }, []);
  const released = (event) => {
    setDrag(null);
    if (drag === null) return;
    const to = at(event);
    if (Math.abs(to - drag.from) > DRAG * perPixel) return setSpan(within([drag.from, to].sort((a, b) => a - b), end));
    const { track, place } = event.target.dataset ?? {};
    if (place !== undefined) onPick(Number(track), Number(place));
  };
  const height = layout.height + AXIS;
  return html`<div class="drawing" ref=${element} tabindex="0" role="group" aria-label="Timeline from ${significant(span[0])} to ${significant(span[1])} µs"
    data-from=${span[0]} data-to=${span[1]} onKeyDown=${pressed}>
    ${width > 0 && html`<svg width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-hidden="true"
      onPointerDown=${(event) => setDrag({ from: at(event), to: at(event) })} onPointerMove=${(event) => drag && setDrag({ ...drag, to: at(event) })}
      onPointerUp=${released} onPointerLeave=${() => setDrag(null)} onDblClick=${() => setSpan([0, end])}>
      <${Axis} span=${span} width=${width} height=${height} />
      ${layout.heads.map((head) => html`<text class="head" x="4" y=${head.y + AXIS} key=${head.text}>${head.text}</text>`)}
      ${layout.lanes.map((lane) => html`<${Lane} lane=${lane} span=${span} width=${width} picked=${picked} key=${lane.y} />`)}
      ${drag && html`<rect class="dragged" x=${(Math.min(drag.from, drag.to) - span[0]) / perPixel} width=${Math.abs(drag.to - drag.from) / perPixel} y="0" height=${height} />`}
    </svg>`}
  </div>`;
}

function Axis({ span, width, height }) {
  const place = (us) => ((us - span[0]) / (span[1] - span[0])) * width;
  return ticks(span[0], span[1], Math.max(2, width / 110)).map(
    (us) => html`<g key=${us}>
      <line class="grid" x1=${place(us)} x2=${place(us)} y1=${AXIS - 8} y2=${height} />
      <text class="tick" x=${place(us) + 3} y="13">${significant(us, 4)}${us === 0 ? " µs" : ""}</text>
    </g>`,
  );
}

function Lane({ lane, span, width, picked }) {
  const scale = width / (span[1] - span[0]);
  const seen = lane.blocks.filter((block) => block.begin_us <= span[1] && block.begin_us + block.duration_us >= span[0]);
  return seen.map((block) => {
    const from = Math.max(0, (block.begin_us - span[0]) * scale);
    const long = Math.max(0.6, Math.min(width, (block.begin_us + block.duration_us - span[0]) * scale) - from);
    const fits = Math.floor((long - 6) / LETTER);
    const chosen = picked && picked.track === lane.track && picked.place === block.place;
    return html`<g key=${block.place}>
      <rect class="block ${block.kind}${chosen ? " chosen" : ""}" x=${from} y=${lane.y + AXIS} width=${long} height=${ROW - 3} data-track=${lane.track} data-place=${block.place} />
      ${fits >= 3 && html`<text class="name" x=${from + 3} y=${lane.y + AXIS + ROW - 8}>${shortened(block.name, fits)}</text>`}
    </g>`;
  });
}

function Legend({ tracks }) {
  const kinds = new Set(tracks.flatMap((track) => track.blocks.map((block) => block.kind)));
  return html`<ul class="legend" aria-label="Kinds of blocks">
    ${Object.entries(KINDS).filter(([kind]) => kinds.has(kind)).map(([kind, text]) => html`<li key=${kind}><span class="swatch block-${kind}"></span>${text}</li>`)}
  </ul>`;
}

function shortened(name, letters) {
  const own = name.replace("aten::", "");
  return own.length <= letters ? own : `${own.slice(0, letters - 1)}…`;
}

function textOf(block, tracks) {
  const where = block.lane === "device" ? `device, stream ${block.row}` : `host, depth ${block.depth}`;
  return `${block.name}: ${KINDS[block.kind]} of ${tracks[block.track].mode}, ${where}; ${significant(block.duration_us)} µs from ${significant(block.begin_us, 4)} µs on`;
}
