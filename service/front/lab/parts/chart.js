// Lines over an axis as SVG, drawn at the width there is, with each line's name at its end.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { plain } from "./numbers.js";

const HEIGHT = 300;
const LINE = 16; // pixels between two names that would lie over each other
const MARGIN = { top: 34, left: 64, bottom: 44 };

/** `[ref, width]`: the width in pixels of the element that `ref` is set on, as it changes; 0 until it is known. */
export function useWidth() {
  const element = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}

/**
 * `series`: [{name, colour, points: [{x, y, low, high}]}], points in the order of x; low and high, where given, are
 * drawn as a bar. `xTicks`: the values that get a label. `xScale` "log" or "linear"; y begins at 0.
 * `label` says in a sentence what is drawn, to who cannot see it: set the numbers in a table beside it.
 */
export function LineChart({ series, label, xTitle, yTitle, xTicks, xScale = "linear", xFormat = plain, yFormat = plain }) {
  const [element, width] = useWidth();
  const drawn = series.filter(({ points }) => points.length > 0);
  const names = 16 + 8 * Math.max(0, ...drawn.map(({ name }) => name.length));
  const right = Math.max(MARGIN.left + 40, width - names);
  const area = { left: MARGIN.left, right, top: MARGIN.top, bottom: HEIGHT - MARGIN.bottom };
  const scales = scalesOf(drawn, xTicks, xScale, area);
  return html`<div class="chart" ref=${element}>
    ${width > 0 && html`<svg width=${width} height=${HEIGHT} role="img" aria-label=${label}>
      <${Axes} ...${{ scales, area, xTicks, xTitle, yTitle, xFormat, yFormat }} />
      ${drawn.map((one, place) => html`<${Line} ...${one} scales=${scales} aside=${aside(drawn, place)} key=${one.name} />`)}
      <${Names} drawn=${drawn} scales=${scales} area=${area} />
    </svg>`}
  </div>`;
}

function scalesOf(drawn, xTicks, xScale, area) {
  const points = drawn.flatMap((one) => one.points);
  const place = xScale === "log" ? Math.log2 : (value) => value;
  const [first, last] = [Math.min(...xTicks), Math.max(...xTicks)].map(place);
  const top = Math.max(...points.map(({ y, high }) => Math.max(y, high ?? y)), 0);
  const yTicks = ticksTo(top);
  const most = yTicks.at(-1);
  // A single tick has no width to lie in: it lies in the middle.
  const share = (value) => (last > first ? (place(value) - first) / (last - first) : 0.5);
  return {
    x: (value) => area.left + share(value) * (area.right - area.left),
    y: (value) => area.bottom - (value / most) * (area.bottom - area.top),
    yTicks,
  };
}

/** Round values from 0 to at least `top`, about four steps. */
function ticksTo(top) {
  if (!(top > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(top / 4));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each * 4 >= top);
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, place) => place * step);
}

function Axes({ scales, area, xTicks, xTitle, yTitle, xFormat, yFormat }) {
  return html`<g class="axes">
    ${scales.yTicks.map((value) => html`<g key=${value}>
      <line x1=${area.left} x2=${area.right} y1=${scales.y(value)} y2=${scales.y(value)} />
      <text x=${area.left - 8} y=${scales.y(value)} class="end">${yFormat(value)}</text>
    </g>`)}
    ${xTicks.map((value) => html`<text x=${scales.x(value)} y=${area.bottom + 18} class="middle" key=${value}>
      ${xFormat(value)}
    </text>`)}
    <text x=${(area.left + area.right) / 2} y=${area.bottom + 38} class="middle title">${xTitle}</text>
    <text x="4" y="10" class="title">${yTitle}</text>
  </g>`;
}

/** How many pixels a line with bars stands aside, so that those of several lines do not cover each other. */
function aside(drawn, place) {
  const bars = drawn[place].points.some(hasBar);
  return bars ? (place - (drawn.length - 1) / 2) * 8 : 0;
}

const hasBar = ({ low, high }) => low != null && high != null;

function Line({ points, colour, scales, aside }) {
  const path = points.map(({ x, y }) => `${scales.x(x)},${scales.y(y)}`).join(" ");
  return html`<g style=${{ color: colour }} transform=${`translate(${aside} 0)`}>
    <polyline points=${path} />
    ${points.length < 20 && points.map((point) => html`<${Point} point=${point} scales=${scales} key=${point.x} />`)}
  </g>`;
}

function Point({ point, scales }) {
  const { x, y, low, high } = point;
  const place = scales.x(x);
  return html`<g>
    ${hasBar(point) && html`<line class="bar" x1=${place} x2=${place} y1=${scales.y(low)} y2=${scales.y(high)} />`}
    <circle cx=${place} cy=${scales.y(y)} r="4" />
  </g>`;
}

/** Each name at the end of its line, moved down where another is in its place. */
function Names({ drawn, scales, area }) {
  const placed = drawn
    .map(({ name, colour, points }) => ({ name, colour, y: scales.y(points.at(-1).y) }))
    .sort((one, other) => one.y - other.y);
  for (let place = 1; place < placed.length; place++) {
    placed[place].y = Math.max(placed[place].y, placed[place - 1].y + LINE);
  }
  return html`<g class="names">
    ${placed.map(({ name, colour, y }) => html`<g key=${name} style=${{ color: colour }}>
      <line x1=${area.right + 2} x2=${area.right + 8} y1=${y} y2=${y} /><text x=${area.right + 12} y=${y}>${name}</text>
    </g>`)}
  </g>`;
}
