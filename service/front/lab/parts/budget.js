// The dispatch budget's formulas, those of `service.anatomy.budget` and `service.statistics.boundedness`: a test
// computes both on a grid of values and holds them equal. Durations are in one unit, whichever it is.

import { html } from "../vendor/htm-preact.js";
import { LineChart } from "./chart.js";
import { Slider, Table } from "./controls.js";
import { Interval, duration, percent, significant } from "./numbers.js";
import { TimeBar } from "./timebar.js";

const LAUNCH_BOUND_BELOW = 0.2;
const KERNEL_BOUND_FROM = 0.5;

/** Length of a step: the sum on a CPU; on CUDA, where both overlap, the longer one. */
const stepOf = (dispatch, kernel, device) => (device === "cpu" ? dispatch + kernel : Math.max(dispatch, kernel));

/** How many times as fast a step is if `left` is all that remains of its dispatch. */
const withoutDispatch = (step, kernel, left = 0) => Math.max(1, step / (kernel + left));

/** How many times as fast a step is with these shares of its dispatch and kernels; null where nothing is left. */
export function speedupWith(dispatchRatio, kernelRatio, dispatch, kernel, device) {
  const left = stepOf(dispatch * dispatchRatio, kernel * kernelRatio, device);
  return left > 0 ? stepOf(dispatch, kernel, device) / left : null;
}

/** `{dispatch, share, bound}` of a step with `operators` calls of `each`, and kernels of `kernel`. */
export function budgetOf(operators, each, kernel) {
  const dispatch = operators * each;
  const share = kernel / (kernel + dispatch);
  return { dispatch, share, bound: boundOf(share) };
}

/** The class of a kernel share on a GPU. */
function boundOf(share) {
  if (share < LAUNCH_BOUND_BELOW) return "launch-bound";
  return share >= KERNEL_BOUND_FROM ? "kernel-bound" : "balanced";
}

const CLASSES = ["launch-bound", "balanced", "kernel-bound"];

/** The ends of a step's kernel share, within the intervals {low, high} of its dispatch and kernel; null: no end. */
export function shareWithin(dispatch, kernel) {
  const share = (part, other) => (part === 0 ? 0 : part / (part + other));
  const high = kernel.high === null ? 1 : share(kernel.high, dispatch.low ?? 0);
  return { low: share(kernel.low ?? 0, dispatch.high ?? Infinity), high };
}

/** The classes that such a share touches. */
export function boundsWithin(dispatch, kernel) {
  const { low, high } = shareWithin(dispatch, kernel);
  return CLASSES.slice(CLASSES.indexOf(boundOf(low)), CLASSES.indexOf(boundOf(high)) + 1);
}

/** The answer to "will compile help?" on a GPU, by class. */
export const HELP = {
  "launch-bound": "yes",
  balanced: "some",
  "kernel-bound": "little by removing dispatch; only fused kernels, which move less memory, could do more",
};

// What a step would be without its dispatch, and with what other modes left of it: bars on one scale.

/** `budget` in seconds: {dispatch, kernel}. `finding`: of the study, for its device, null kernel and gains. */
export function WhatIf({ budget, finding }) {
  const { dispatch, kernel } = budget;
  const { device, gains, null_kernel_seconds: left } = finding;
  const scale = dispatch + kernel;
  const speedup = withoutDispatch(stepOf(dispatch, kernel, device), kernel, left);
  return html`<ul class="whatif">
    <${Bar} title="This step" ...${{ dispatch, kernel, scale }} speedup=${null} />
    <${Bar} title="Without its dispatch" dispatch=${left} ...${{ kernel, scale, speedup }} about=${aboutGraphs(device, left)} />
    ${gains.map((gain) => html`<${Gain} ...${{ gain, dispatch, kernel, scale, device }} key=${gain.mode} />`)}
  </ul>`;
}

function Gain({ gain, dispatch, kernel, scale, device }) {
  const { dispatch_ratio: ofDispatch, kernel_ratio: ofKernel, speedup } = gain;
  if (ofDispatch === null || ofKernel === null) {
    const why = "not known: a part of the budget's own step was measured as nothing, so there is no ratio to it";
    return html`<li><h2>${titleOf(gain)}</h2><p class="absent">${why}</p></li>`;
  }
  const about =
    `Measured here, this mode left ${range(ofDispatch)} of dispatch and ${range(ofKernel)} of kernels, and was` +
    ` ${significant(speedup.value)} times as fast (${significant(speedup.low)}–${significant(speedup.high)}).`;
  const then = speedupWith(ofDispatch.value, ofKernel.value, dispatch, kernel, device);
  return html`<${Bar} title=${titleOf(gain)} dispatch=${dispatch * ofDispatch.value} kernel=${kernel * ofKernel.value}
    scale=${scale} speedup=${then} about=${about} />`;
}

function Bar({ title, dispatch, kernel, scale, speedup, about }) {
  const parts = [{ name: "dispatch", seconds: dispatch }, { name: "kernel", seconds: kernel }];
  return html`<li>
    <h2>${title}${speedup !== null && html`<${Times} speedup=${speedup} />`}</h2>
    <${TimeBar} parts=${parts} total=${dispatch + kernel} scale=${scale} label=${title} />
    ${about && html`<p class="note">${about}</p>`}
  </li>`;
}

function Times({ speedup }) {
  return html` <b class="figure" data-speedup=${speedup}>${significant(speedup)}×</b> <span class="soft">as fast</span>`;
}

const titleOf = ({ mode, effective }) => `With ${mode}${effective === mode ? "" : ` (${effective})`}`;

const end = (share) => (share === null ? "?" : percent(share));
const range = ({ value, low, high }) => `${percent(value)} (${end(low)} to ${end(high)})`;

function aboutGraphs(device, left) {
  const issued = `All the host still issues is one empty operator (${duration(left)}).`;
  if (device !== "cpu") return `${issued} That is what a replayed graph buys, with the same kernels.`;
  return `${issued} A CPU has no graphs that do it.`;
}

// The three quantities of a budget as sliders: each moves by quarters of a doubling from its measured value.

const MOST = 20; // quarters of a doubling, up and down

/** How far a slider stands from the measured value, by the address. */
function quarters(lab, slider) {
  const found = Number.parseInt(lab.query[slider] ?? "0", 10);
  return Number.isNaN(found) ? 0 : Math.min(MOST, Math.max(-MOST, found));
}

const scaled = (value, steps) => value * 2 ** (steps / 4);
const operatorsAt = (value, steps) => (steps === 0 ? value : Math.max(1, Math.round(scaled(value, steps))));

/** The three quantities of a finding's `budget` where the sliders stand; `each` and `kernel` in seconds. */
export function quantities(lab, budget) {
  return {
    operators: operatorsAt(budget.ops_per_step.value, quarters(lab, "operators")),
    each: scaled(budget.microseconds_per_op.value, quarters(lab, "each")) / 1e6,
    kernel: scaled(budget.kernel_microseconds.value, quarters(lab, "kernel")) / 1e6,
  };
}

/** Whether every slider stands at its measured value. */
export const asMeasured = (lab) => ["operators", "each", "kernel"].every((slider) => quarters(lab, slider) === 0);

export function Sliders({ lab, budget }) {
  const micros = ({ value }) => (steps) => duration(scaled(value, steps) / 1e6);
  const { ops_per_step: operators, microseconds_per_op: each, kernel_microseconds: kernel } = budget;
  const rows = [
    ["operators", "Operators per step, below autograd", operators, (steps) => String(operatorsAt(operators.value, steps))],
    ["each", "Dispatch per operator", each, micros(each)],
    ["kernel", "Kernels per step", kernel, micros(kernel)],
  ];
  const back = () => lab.changeQuery({ operators: null, each: null, kernel: null });
  return html`<hr />
    ${rows.map(([key, ...row]) => html`<${One} lab=${lab} name=${key} row=${row} key=${key} />`)}
    <button type="button" onClick=${back}>Back to this machine's values</button>`;
}

function One({ lab, name, row: [label, { value, source }, format] }) {
  const at = quarters(lab, name);
  const moved = (steps) => lab.changeQuery({ [name]: steps || null });
  const note = value === 0 ? "measured as nothing: other work disturbed it; measure again" : `${source}: ${format(0)} here`;
  return html`<${Slider} label=${label} min=${-MOST} max=${MOST} value=${at} format=${format} disabled=${value === 0}
      onInput=${moved} />
    <p class="note">${note}</p>`;
}

// A budget's points, a step of each mode at each batch: as a table, as lines over batches, and its crossovers.

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

/** `finding`: of the study `budget`, with points; `step`: what a step is called here. */
export function Points({ finding, step }) {
  const { points, crossovers, device, rounds } = finding;
  const against = {
    key: "speedup",
    title: `against ${points[0].mode}`,
    numeric: true,
    show: ({ speedup }) => html`<${Interval} ...${speedup} unit="×" />`,
  };
  const caption = `Per ${step} on ${device}, ${rounds} interleaved rounds`;
  return html`<${Table} caption=${caption} columns=${[...COLUMNS, against]} rows=${points} />
    ${crossovers.map((place) => html`<p key=${place.mode}>${place.mode}: ${crossoverText(place)}.</p>`)}`;
}

/** Dispatch and kernel of the budget's own mode, where more than one batch was measured. */
export function ByBatch({ finding, step }) {
  const { mode } = finding.budget;
  const points = finding.points.filter((point) => point.mode === mode);
  if (points.length < 2) return null;
  const scaled = (end) => (end === null ? null : end * 1e3);
  const ends = ({ value, low, high }) => ({ y: value * 1e3, low: scaled(low), high: scaled(high) });
  const line = (part) => points.map((point) => ({ x: point.batch_size, ...ends(point[`${part}_seconds`]) }));
  const parts = ["dispatch", "kernel"];
  const series = parts.map((part) => ({ name: part, colour: `var(--part-${part})`, points: line(part) }));
  const label = `Dispatch and kernel of one ${step} of ${mode}, by batch; the table has the numbers`;
  const batches = points.map(({ batch_size }) => batch_size);
  return html`<${LineChart} series=${series} label=${label} xTitle="batch" yTitle=${`ms per ${step}`} xTicks=${batches}
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
