// Budget: operators per step, microseconds per operator and kernels, as sliders that start at this machine's values.

import { html } from "../vendor/htm-preact.js";
import {
  ByBatch, HELP, Points, Sliders, WhatIf, asMeasured, boundsWithin, budgetOf, quantities, shareWithin,
} from "../parts/budget.js";
import { DataLink, QueryChoice, Question, StepChoice, batchSizes, chosen, modeOptions, readyModes } from "../parts/controls.js";
import { duration, percent, significant } from "../parts/numbers.js";
import { StudyRun, useStudy } from "../parts/study.js";

export const name = "budget";
export const title = "Budget";
export const needs = ["budget"];
export const sentence =
  "Operators per step times microseconds per operator, against kernels, from this machine's own values: the kernel" +
  " share of the step, and what compiling or a graph would buy.";

const MODES = [{ value: "all", label: "all that are ready" }, { value: "one", label: "this mode alone" }];
const BATCHES = [{ value: "one", label: "this batch alone" }, { value: "all", label: "all" }];
const EMPTY =
  "Nothing has been measured yet: the sliders start at this machine's values. It takes some seconds per mode, more" +
  " where one has to be compiled.";

/** What the address chooses; `issuing` are the modes that issue single operators. */
function choicesOf(lab) {
  const sizes = batchSizes(lab.engine);
  const issuing = lab.modes.filter(({ compilations }) => compilations.length === 0);
  const plain = readyModes(issuing);
  return {
    issuing,
    mode: chosen(lab, "mode", plain, plain[0]),
    batch: chosen(lab, "batch", sizes, sizes[0]),
    modes: chosen(lab, "modes", ["all", "one"], "all"),
    batches: chosen(lab, "batches", ["all", "one"], "one"),
  };
}

export function View({ lab }) {
  const study = useStudy(lab, "budget");
  const { mode, batch, modes, batches, issuing } = choicesOf(lab);
  const body = {
    mode,
    batch_size: batch,
    modes: modes === "all" ? readyModes(lab.modes) : [mode],
    batch_sizes: batches === "all" ? batchSizes(lab.engine) : [batch],
  };
  const choice = (key, label, options, value) =>
    html`<${QueryChoice} lab=${lab} name=${key} label=${label} options=${options} value=${value} />`;
  return html`<div class="columns">
      <section class="card" aria-label="Which step">
        ${choice("mode", "Budget of a step in", modeOptions(issuing), mode)}
        <${StepChoice} lab=${lab} phases=${[lab.workload.main]} />
        ${choice("modes", "Beside it, modes", MODES, modes)} ${choice("batches", "At batches", BATCHES, batches)}
        ${study.kept && html`<${Sliders} lab=${lab} budget=${study.kept.finding.budget} />`}
      </section>
      <${StudyRun} study=${study} body=${body} label="Measure this machine's values" empty=${EMPTY}>
        ${(finding) => html`<${Verdict} lab=${lab} finding=${finding} />`}
      <//>
    </div>
    ${study.kept && html`<${Found} finding=${study.kept.finding} step=${lab.workload.step} />`}`;
}

/** The measured step of the budget; undefined with a slider moved, as that is another step. */
function measuredPoint(lab, { budget, points }) {
  const own = ({ mode, batch_size }) => mode === budget.mode && batch_size === budget.batch_size;
  return asMeasured(lab) ? points.find(own) : undefined;
}

const UNDECIDED = "not decided by this measurement: its intervals touch more than one class; measure again on a quiet machine";

function Verdict({ lab, finding }) {
  const { operators, each, kernel } = quantities(lab, finding.budget);
  const { dispatch, share, bound } = budgetOf(operators, each, kernel);
  const found = { share, bound, point: measuredPoint(lab, finding) };
  return html`<section class="card" aria-label="Verdict" data-share=${share}>
      ${finding.device === "cpu" ? html`<${Headroom} ...${found} />` : html`<${Bound} ...${found} />`}
      <p class="soft">
        ${operators} × ${duration(each)} = ${duration(dispatch)} of dispatch, against ${duration(kernel)} of kernels.
      </p>
    </section>
    <${WhatIf} budget=${{ dispatch, kernel }} finding=${finding} />`;
}

function Headroom({ share, point }) {
  const ends = point && shareWithin(point.dispatch_seconds, point.kernel_seconds);
  const without = share > 0 ? `be ${significant(1 / share)} times as fast` : "take no time";
  return html`<p class="figure">kernel share ${percent(share)}${ends && ` (${percent(ends.low)} to ${percent(ends.high)})`}</p>
    <p>${percent(1 - share)} of the step is dispatch: without it the step would ${without}, with the same kernels.</p>`;
}

/** The class of a GPU's step, where the measurement leaves one alone open. */
function Bound({ share, bound, point }) {
  const classes = point ? boundsWithin(point.dispatch_seconds, point.kernel_seconds) : [bound];
  const decided = classes.length === 1;
  return html`<p class="figure bound ${decided ? bound : ""}">${decided ? bound : `undecided: ${classes.join(" or ")}`}</p>
    <p>
      Kernel share ${percent(share)}: the rest of dispatch + kernel, which overlap, is dispatch. Will compile help?
      ${" "}<b>${decided ? HELP[bound] : UNDECIDED}</b>.
    </p>`;
}

function Found({ finding, step }) {
  return html`<${Formulas} />
    ${finding.points.length > 0 && html`<${Points} finding=${finding} step=${step} />`}
    <${ByBatch} finding=${finding} step=${step} />
    ${finding.notes.map((note) => html`<p class="note">${note}</p>`)}
    <${Question}
      ask="How few operators would this step have to issue until its kernels take as long as its dispatch?"
      answer=${answer(finding.budget)} missing="Kernels were measured as nothing: measure again." />
    <${DataLink} data=${finding} name="budget" />`;
}

const Formulas = () => html`<details>
  <summary>The formulas</summary>
  <ul>
    <li>dispatch = operators × dispatch per operator</li>
    <li>
      kernel share = kernel ÷ (kernel + dispatch); on a GPU below 20 % launch-bound, from 50 % kernel-bound, balanced
      between
    </li>
    <li>step = dispatch + kernel on a CPU, where both share one timeline; on CUDA, where they overlap, the longer one</li>
    <li>without dispatch: step ÷ (kernel + one empty operator)</li>
    <li>
      with another mode: step ÷ the step of what it leaves, its measured share of dispatch and its measured share of
      kernels. Away from the measured values that is an extrapolation.
    </li>
  </ul>
</details>`;

function answer(budget) {
  const kernel = budget.kernel_microseconds.value;
  if (kernel === 0) return null;
  const each = budget.microseconds_per_op.value;
  const [now, enough] = [budget.ops_per_step.value, Math.floor(kernel / each)];
  if (enough >= now) return `It is there already: it issues ${now}, and its kernels cover ${enough}.`;
  const fused = significant(now / Math.max(1, enough));
  return (
    `${enough} instead of ${now}, at ${duration(each / 1e6)} each: ${duration(kernel / 1e6)} of kernels cover no more.` +
    ` Fusing ${fused} operators into one on average would do it, if the kernels stayed as they are.`
  );
}
