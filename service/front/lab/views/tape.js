// Tape: what autograd records of a computation and keeps for a backward pass; with grad mode off, nothing.

import { html } from "../vendor/htm-preact.js";
import { DataLink, QueryChoice, Question, StepChoice, chosen, modeOptions, stepOf } from "../parts/controls.js";
import { bytes } from "../parts/numbers.js";
import { StudyRun, useStudy } from "../parts/study.js";
import { Backward, Forward, Steps, TapeDrawing } from "../parts/tape.js";

export const name = "tape";
export const title = "Tape";
export const needs = ["tape"];
export const sentence =
  "What autograd records while a computation runs forward, and which tensors it keeps for the way back; with grad mode" +
  " off it is empty, and that is the point.";

/** The service's menu: over an activation x [32, 64], weights w [64, 64] and b [64]; and two parts of the model. */
export const EXPRESSIONS = [
  { value: "block", label: "a block of the model" },
  { value: "matmul", label: "x @ w" },
  { value: "linear-relu-sum", label: "(x @ w + b).relu().sum()" },
  { value: "layer-norm", label: "F.layer_norm(x @ w, (64,))" },
  { value: "gate", label: "F.silu(x @ w) * x" },
  { value: "exp", label: "x.exp()" },
  { value: "scale", label: "x * 2" },
  { value: "step", label: "a whole step" },
];

const GRADS = [
  { value: "enabled", label: "grad mode on" },
  { value: "no_grad", label: "no_grad" },
  { value: "inference_mode", label: "inference_mode" },
];

const valuesOf = (options) => options.map(({ value }) => value);

export function View({ lab }) {
  const study = useStudy(lab, "tape");
  const expression = chosen(lab, "expression", valuesOf(EXPRESSIONS), "linear-relu-sum");
  const step = stepOf(lab);
  const ofModel = expression === "block" || expression === "step";
  const choice = (key, label, options, value) =>
    html`<${QueryChoice} lab=${lab} name=${key} label=${label} options=${options} value=${value} />`;
  return html`<div class="columns">
      <section class="card" aria-label="Which computation">
        ${choice("expression", "Computation", EXPRESSIONS, expression)}
        ${ofModel && html`<${StepChoice} lab=${lab} />`}
        ${choice("mode", "Beside it, a step of the model in", modeOptions(lab.modes), step.mode)}
      </section>
      <${StudyRun} study=${study} body=${{ expression, ...step }} label="Record the tape"
        empty="No tape has been recorded yet: record one; it takes a moment.">
        ${(finding) => html`<${Figures} lab=${lab} finding=${finding} />`}
      <//>
    </div>
    ${study.kept && html`<${Found} lab=${lab} finding=${study.kept.finding} />`}`;
}

/** The run in the chosen grad mode, in one form: `{grad, forward, backward, held}`. */
function runOf(lab, finding) {
  const grad = chosen(lab, "grad", valuesOf(GRADS), "enabled");
  const off = finding.untaped.find((run) => run.grad === grad);
  if (off) return { ...off, backward: NONE };
  return { grad: "enabled", forward: finding.forward, backward: finding.backward, held: finding.held };
}

const NONE = [];

function Figures({ lab, finding }) {
  const { grad, forward, backward, held } = runOf(lab, finding);
  const label = "The same computation with";
  return html`<${QueryChoice} lab=${lab} name="grad" label=${label} options=${GRADS} value=${grad} />
    <div class="cards">
      <${Figure} name="operators" value=${forward.length} text="ran forward, below autograd" />
      <${Figure} name="nodes" value=${backward.length} text="on the tape, for the way back" />
      <${Figure} name="saved" value=${bytes(held.storage_bytes)}
        text=${`saved: ${held.tensors} tensors in ${held.storages} storages`} />
      <${Figure} name="own" value=${bytes(held.own_bytes)} text="of it, that only the tape keeps alive" />
    </div>
    ${grad !== "enabled" && html`<${EmptyTape} count=${forward.length} saved=${finding.held.storage_bytes} />`}`;
}

function Figure({ name: key, value, text }) {
  return html`<section class="card" data-figure=${key} aria-label=${key}><p class="figure">${value}</p><p>${text}</p></section>`;
}

function EmptyTape({ count, saved }) {
  return html`<p>
    <b>The tape is empty.</b> ${count} operators ran, and nothing waits for a backward pass: ${bytes(saved)} less to keep
    than with grad mode on.
  </p>`;
}

function Found({ lab, finding }) {
  const { grad, forward, backward } = runOf(lab, finding);
  return html`<h2>${finding.source}, on ${finding.device}</h2>
    <${TapeDrawing} forward=${forward} backward=${backward} leaves=${finding.leaves} />
    <p class="note">
      Left to right: the operators in order. Below each, the node that autograd made for it; backward runs right to
      left, along the curves, down to the leaves that get a gradient. Between them the saved tensors with their bytes:
      ${" "}<span class="own">memory that only the tape keeps alive</span>, or
      ${" "}<span class="kept">a parameter or input that is there anyway</span>.
    </p>
    <${Forward} forward=${forward} backward=${backward} />
    ${grad === "enabled" && html`<${Backward} backward=${backward} />`}
    <${Steps} finding=${finding} />
    <${Question} ask="Which node keeps the most memory alive that nothing else needs, and what would it keep under no_grad?"
      answer=${answer(finding)} missing="This computation saves nothing of its own: try a product or the block." />
    <${DataLink} data=${finding} name="tape" />`;
}

/** Bytes of a node's saved tensors that only the tape keeps alive. */
function ownBytes({ saved }) {
  const own = saved.filter(({ kind }) => kind === "intermediate");
  return own.reduce((sum, tensor) => sum + tensor.tensor_bytes, 0);
}

function answer({ backward, held, untaped }) {
  const [most] = [...backward].sort((one, other) => ownBytes(other) - ownBytes(one));
  if (!most || ownBytes(most) === 0) return null;
  const off = untaped.find(({ grad }) => grad === "no_grad").held;
  return (
    `${most.name} (node ${most.index}) keeps ${bytes(ownBytes(most))}; of the whole tape ${bytes(held.own_bytes)} are` +
    ` kept by nothing else. Under no_grad autograd kept ${bytes(off.storage_bytes)} in ${off.tensors} tensors.`
  );
}
