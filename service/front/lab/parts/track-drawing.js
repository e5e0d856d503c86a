// The drawing of a timeline: an axis, and the lanes of each mode's host and device, over the span that is shown.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { ticks } from "./axis.js";
import { useWidth } from "./chart.js";
import { ROW, laneLayout } from "./lanes.js";
import { significant } from "./numbers.js";
import { within, zoomed } from "./span.js";

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
export function TrackDrawing({ tracks, span, end, setSpan, pressed, pick, picked }) {
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
