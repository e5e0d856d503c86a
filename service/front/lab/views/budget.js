// Budget: operators per step, microseconds per operator and kernels, as sliders that start at this machine's values.

import { html } from "../vendor/htm-preact.js";
import { HELP, budgetOf } from "../parts/budget.js";
import { QueryChoice, chosen } from "../parts/choices.js";
import { LineChart } from "../parts/chart.js";
import { Slider } from "../parts/controls.js";
import { DataLink } from "../parts/data.js";
import { batchSizes, modeOptions, readyModes } from "../parts/input.js";
import { Interval } from "../parts/interval.js";
import { duration, percent, significant } from "../parts/numbers.js";
import { Question } from "../parts/question.js";
import { StudyRun, useStudy } from "../parts/study.js";
import { Table } from "../parts/table.js";
import { WhatIf } from "../parts/whatif.js";

export const name = "budget";
export const title = "Budget";
export const sentence = "Operators per step times microseconds per operator, against kernels, from this machine's own values: what binds the step, and what compiling or a graph would buy.";

const MOST = 20; // quarters of a doubling, up and down

const MODES = [{ value: "all", label: "all that are ready" }, { value: "one", label: "this mode alone" }];
const BATCHES = [{ value: "one", label: "this batch alone" }, { value: "all", label: "all" }];

export function View({ lab }) {
  const study = useStudy(lab, "budget");
  const ready = readyModes(lab.modes);
  const issuing = lab.modes.filter(({ compilations }) => compilations.length === 0);
  const plain = readyModes(issuing);
  const mode = chosen(lab, "mode", plain, plain[0]);
  const batch = chosen(lab, "batch", batchSizes(lab.engine), batchSizes(lab.engine)[0]);
  const modes = chosen(lab, "modes", ["all", "one"], "all");
  const batches = chosen(lab, "batches", ["all", "one"], "one");
  const body = { mode, batch_size: batch, modes: modes === "all" ? ready : [mode], batch_sizes: batches === "all" ? batchSizes(lab.engine) : [batch] };
  return html`<div class="columns">
      <section class="card" aria-label="Which step">
        <${QueryChoice} lab=${lab} name="mode" label="Budget of a step in" options=${modeOptions(issuing)} value=${mode} />
        <${QueryChoice} lab=${lab} name="batch" label="Batch" options=${batchSizes(lab.engine)} value=${batch} />
        <${QueryChoice} lab=${lab} name="modes" label="Beside it, modes" options=${MODES} value=${modes} />
        <${QueryChoice} lab=${lab} name="batches" label="At batches" options=${BATCHES} value=${batches} />
        ${study.kept && html`<${Sliders} lab=${lab} budget=${study.kept.finding.budget} />`}
      </section>
      <${StudyRun} study=${study} body=${body} label="Measure this machine's values" empty="Nothing has been measured yet: the sliders start at this machine's values. It takes some seconds per mode, more where one has to be compiled.">
        ${(finding) => html`<${Verdict} lab=${lab} finding=${finding} />`}
      <//>
    </div>
    ${study.kept && html`<${Found} finding=${study.kept.finding} />`}`;
}

/** How far a slider stands from the measured value, in quarters of a doubling. */
function quarters(lab, slider) {
  const found = Number.parseInt(lab.query[slider] ?? "0", 10);
  return Number.isNaN(found) ? 0 : Math.min(MOST, Math.max(-MOST, found));
}

const scaled = (value, steps) => value * 2 ** (steps / 4);
const operatorsAt = (value, steps) => (steps === 0 ? value : Math.max(1, Math.round(scaled(value, steps))));

/** The three quantities where the sliders stand, the durations in seconds. */
function quantities(lab, budget) {
  return {
    operators: operatorsAt(budget.ops_per_step.value, quarters(lab, "operators")),
    each: scaled(budget.microseconds_per_op.value, quarters(lab, "each")) / 1e6,
    kernel: scaled(budget.kernel_microseconds.value, quarters(lab, "kernel")) / 1e6,
  };
}

function Sliders({ lab, budget }) {
  const sliders = [
    ["operators", "Operators per step, below autograd", budget.ops_per_step, (steps) => String(operatorsAt(budget.ops_per_step.value, steps))],
    ["each", "Dispatch per operator", budget.microseconds_per_op, (steps) => duration(scaled(budget.microseconds_per_op.value, steps) / 1e6)],
    ["kernel", "Kernels per step", budget.kernel_microseconds, (steps) => duration(scaled(budget.kernel_microseconds.value, steps) / 1e6)],
  ];
  return html`<hr />
    ${sliders.map(
      ([key, label, { value, source }, format]) => html`<${Slider} key=${key} label=${label} min=${-MOST} max=${MOST} value=${quarters(lab, key)} format=${format} disabled=${value === 0} onInput=${(steps) => lab.changeQuery({ [key]: steps || null })} />
        <p class="note">${value === 0 ? "measured as nothing: other work disturbed it; measure again" : `${source}: ${format(0)} here`}</p>`,
    )}
    <button type="button" onClick=${() => lab.changeQuery({ operators: null, each: null, kernel: null })}>Back to this machine's values</button>`;
}

function Verdict({ lab, finding }) {
  const { operators, each, kernel } = quantities(lab, finding.budget);
  const found = budgetOf(operators, each, kernel);
  const share = finding.device === "cpu" ? "of the step is dispatch" : "of dispatch + kernel, which overlap, is dispatch";
  return html`<section class="card" aria-label="Verdict" data-bound=${found.bound} data-index=${found.index}>
      <p class="figure bound ${found.bound}">${found.bound}</p>
      <p>Device-bound index ${significant(found.index)}: ${percent(1 - found.index)} ${share}. Will compile help? <b>${HELP[found.bound]}</b>.</p>
      <p class="soft">${operators} × ${duration(each)} = ${duration(found.dispatch)} of dispatch, against ${duration(kernel)} of kernels.</p>
    </section>
    <${WhatIf} budget=${{ dispatch: found.dispatch, kernel }} finding=${finding} />`;
}

function Found({ finding }) {
  return html`<${Formulas} />
    ${finding.points.length > 0 && html`<${Points} finding=${finding} />`}
    <${ByBatch} finding=${finding} />
    ${finding.crossovers.map((place) => html`<p key=${place.mode}>${place.mode}: ${crossoverText(place)}.</p>`)}
    ${finding.notes.map((note) => html`<p class="note">${note}</p>`)}
    <${Question} ask="How few operators would this step have to issue until its kernels take as long as its dispatch?" answer=${answer(finding.budget)} missing="Kernels were measured as nothing: measure again." />
    <${DataLink} data=${finding} name="budget" />`;
}

const Formulas = () => html`<details>
  <summary>The formulas</summary>
  <ul>
    <li>dispatch = operators × dispatch per operator</li>
    <li>index = kernel ÷ (kernel + dispatch); below 0.2 launch-bound, from 0.5 kernel-bound, balanced between</li>
    <li>step = dispatch + kernel on a CPU, where both share one timeline; on CUDA, where they overlap, the longer one</li>
    <li>without dispatch: step ÷ (kernel + one empty operator)</li>
    <li>with another mode: step ÷ the step of what it leaves, its measured share of dispatch and its measured share of kernels. Away from the measured values that is an extrapolation.</li>
  </ul>
</details>`;

function Points({ finding }) {
  const columns = [
    { key: "mode", title: "mode" },
    { key: "batch_size", title: "batch", numeric: true, show: ({ batch_size, disturbed }) => `${batch_size}${disturbed ? " (disturbed)" : ""}` },
    { key: "step", title: "step", numeric: true, show: ({ step }) => html`<${Interval} ...${step} />` },
    { key: "dispatch", title: "dispatch", numeric: true, show: (point) => html`<${Interval} ...${point.dispatch_seconds} />` },
    { key: "kernel", title: "kernel", numeric: true, show: (point) => html`<${Interval} ...${point.kernel_seconds} />` },
    { key: "bound", title: "bound", show: (point) => `${point.bound}, index ${significant(point.device_bound_index)}` },
    { key: "without", title: "without dispatch", numeric: true, show: (point) => `${point.source === "calibrated" ? "≥ " : ""}${significant(point.without_dispatch_speedup)}×` },
    { key: "speedup", title: `against ${finding.points[0].mode}`, numeric: true, show: ({ speedup }) => html`<${Interval} ...${speedup} unit="×" />` },
  ];
  return html`<${Table} caption=${`Per decode step on ${finding.device}, ${finding.rounds} interleaved rounds`} columns=${columns} rows=${finding.points} />`;
}

/** Dispatch and kernel of the budget's own mode, where more than one batch was measured. */
function ByBatch({ finding }) {
  const { mode } = finding.budget;
  const points = finding.points.filter((point) => point.mode === mode);
  if (points.length < 2) return null;
  const inMilliseconds = ({ value, low, high }) => ({ y: value * 1e3, low: low === null ? null : low * 1e3, high: high === null ? null : high * 1e3 });
  const line = (part) => points.map((point) => ({ x: point.batch_size, ...inMilliseconds(point[`${part}_seconds`]) }));
  const series = ["dispatch", "kernel"].map((part) => ({ name: part, colour: `var(--part-${part})`, points: line(part) }));
  return html`<${LineChart} series=${series} label=${`Dispatch and kernel of a decode step of ${mode}, by batch; the table has the numbers`}
    xTitle="batch" yTitle="ms per step" xTicks=${points.map(({ batch_size }) => batch_size)} xScale="log" yFormat=${significant} />`;
}

function crossoverText({ where, batch_size }) {
  if (batch_size === null) return "no crossover is known";
  const at = Number.isInteger(batch_size) ? batch_size : significant(batch_size);
  const texts = { at: `kernels take as long as dispatch at batch ${at}`, below: `kernels take longer from batch ${at}, the smallest measured, on`, above: `dispatch still takes longer at batch ${at}, the largest measured` };
  return texts[where];
}

function answer(budget) {
  const kernel = budget.kernel_microseconds.value;
  if (kernel === 0) return null;
  const enough = Math.floor(kernel / budget.microseconds_per_op.value);
  const now = budget.ops_per_step.value;
  if (enough >= now) return `It is there already: ${now} operators, and ${enough} would still be covered by the kernels.`;
  return `${enough} instead of ${now}, at ${duration(budget.microseconds_per_op.value / 1e6)} each: ${duration(kernel / 1e6)} of kernels cover no more. Fusing ${significant(now / Math.max(1, enough))} operators into one on average would do it, if the kernels stayed as they are.`;
}
