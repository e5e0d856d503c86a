// A budget's points, a decode step of each mode at each batch: as a table, as lines over batches, and its crossovers.

import { html } from "../vendor/htm-preact.js";
import { LineChart } from "./chart.js";
import { Interval } from "./interval.js";
import { percent, significant } from "./numbers.js";
import { Table } from "./table.js";

const interval = (found) => html`<${Interval} ...${found} />`;

const COLUMNS = [
  { key: "mode", title: "mode" },
  { key: "batch_size", title: "batch", numeric: true, show: batchOf },
  { key: "step", title: "step", numeric: true, show: ({ step }) => interval(step) },
  { key: "dispatch", title: "dispatch", numeric: true, show: (point) => interval(point.dispatch_seconds) },
  { key: "kernel", title: "kernel", numeric: true, show: (point) => interval(point.kernel_seconds) },
  { key: "share", title: "kernel share", show: shareOf },
  { key: "without", title: "without dispatch", numeric: true, show: (point) => `${significant(point.without_dispatch_speedup)}×` },
];

function batchOf({ batch_size, disturbed }) {
  return `${batch_size}${disturbed ? " (disturbed)" : ""}`;
}

/** The class too where both parts are measured: on a GPU. */
function shareOf({ device_bound_index: share, source, bound }) {
  return `${percent(share)}${source === "measured" ? `, ${bound}` : ""}`;
}

/** `finding`: of the study `budget`, with points. */
export function Points({ finding }) {
  const { points, crossovers, device, rounds } = finding;
  const against = {
    key: "speedup",
    title: `against ${points[0].mode}`,
    numeric: true,
    show: ({ speedup }) => html`<${Interval} ...${speedup} unit="×" />`,
  };
  const caption = `Per decode step on ${device}, ${rounds} interleaved rounds`;
  return html`<${Table} caption=${caption} columns=${[...COLUMNS, against]} rows=${points} />
    ${crossovers.map((place) => html`<p key=${place.mode}>${place.mode}: ${crossoverText(place)}.</p>`)}`;
}

/** Dispatch and kernel of the budget's own mode, where more than one batch was measured. */
export function ByBatch({ finding }) {
  const { mode } = finding.budget;
  const points = finding.points.filter((point) => point.mode === mode);
  if (points.length < 2) return null;
  const scaled = (end) => (end === null ? null : end * 1e3);
  const ends = ({ value, low, high }) => ({ y: value * 1e3, low: scaled(low), high: scaled(high) });
  const line = (part) => points.map((point) => ({ x: point.batch_size, ...ends(point[`${part}_seconds`]) }));
  const parts = ["dispatch", "kernel"];
  const series = parts.map((part) => ({ name: part, colour: `var(--part-${part})`, points: line(part) }));
  const label = `Dispatch and kernel of a decode step of ${mode}, by batch; the table has the numbers`;
  const batches = points.map(({ batch_size }) => batch_size);
  return html`<${LineChart} series=${series} label=${label} xTitle="batch" yTitle="ms per step" xTicks=${batches}
    xScale="log" />`;
}

function crossoverText({ where, batch_size }) {
  if (where === "several") return "kernels take longer than dispatch at some batch, and shorter at a larger one";
  if (batch_size === null) return "no crossover is known";
  const at = Number.isInteger(batch_size) ? batch_size : significant(batch_size);
  const texts = {
    at: `kernels take as long as dispatch at batch ${at}`,
    below: `kernels take longer from batch ${at}, the smallest measured, on`,
    above: `dispatch still takes longer at batch ${at}, the largest measured`,
  };
  return texts[where];
}
