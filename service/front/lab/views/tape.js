// Tape: what autograd records of a computation and keeps for a backward pass; with grad mode off, nothing.

import { html } from "../vendor/htm-preact.js";
import { PHASES, QueryChoice, chosen } from "../parts/choices.js";
import { DataLink } from "../parts/data.js";
import { batchSizes, modeOptions, readyModes } from "../parts/input.js";
import { bytes } from "../parts/numbers.js";
import { Question } from "../parts/question.js";
import { StudyRun, useStudy } from "../parts/study.js";
import { Table } from "../parts/table.js";
import { TapeDrawing, savedBytes, savedText, shape, shortName } from "../parts/tape.js";

export const name = "tape";
export const title = "Tape";
export const sentence = "What autograd records while a computation runs forward, and which tensors it keeps for the way back; with grad mode off it is empty, and that is the point.";

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

export function View({ lab }) {
  const study = useStudy(lab, "tape");
  const ready = readyModes(lab.modes);
  const expression = chosen(lab, "expression", EXPRESSIONS.map(({ value }) => value), "linear-relu-sum");
  const batch = chosen(lab, "batch", batchSizes(lab.engine), batchSizes(lab.engine)[0]);
  const phase = chosen(lab, "phase", ["decode", "prefill"], "decode");
  const mode = chosen(lab, "mode", ready, ready[0]);
  const ofModel = expression === "block" || expression === "step";
  return html`<div class="columns">
      <section class="card" aria-label="Which computation">
        <${QueryChoice} lab=${lab} name="expression" label="Computation" options=${EXPRESSIONS} value=${expression} />
        ${ofModel && html`<${QueryChoice} lab=${lab} name="phase" label="Phase" options=${PHASES} value=${phase} />`}
        ${ofModel && html`<${QueryChoice} lab=${lab} name="batch" label="Batch" options=${batchSizes(lab.engine)} value=${batch} />`}
        <${QueryChoice} lab=${lab} name="mode" label="Beside it, a step of the model in" options=${modeOptions(lab.modes)} value=${mode} />
      </section>
      <${StudyRun} study=${study} body=${{ expression, batch_size: batch, phase, mode }} label="Record the tape" empty="No tape has been recorded yet: record one; it takes a moment.">
        ${(finding) => html`<${Figures} lab=${lab} finding=${finding} />`}
      <//>
    </div>
    ${study.kept && html`<${Found} lab=${lab} finding=${study.kept.finding} />`}`;
}

/** The run in the chosen grad mode, in one form: `{grad, forward, backward, held}`. */
function runOf(lab, finding) {
  const grad = chosen(lab, "grad", GRADS.map(({ value }) => value), "enabled");
  const off = finding.untaped.find((run) => run.grad === grad);
  return off ? { ...off, backward: [] } : { grad: "enabled", forward: finding.forward, backward: finding.backward, held: finding.held };
}

function Figures({ lab, finding }) {
  const { grad, forward, backward, held } = runOf(lab, finding);
  const figures = [
    ["operators", forward.length, "ran forward, below autograd"],
    ["nodes", backward.length, "on the tape, for the way back"],
    ["saved", bytes(held.storage_bytes), `${held.tensors} tensors in ${held.storages} storages`],
    ["own", bytes(held.own_bytes), "of it, that only the tape keeps alive"],
  ];
  return html`<${QueryChoice} lab=${lab} name="grad" label="The same computation with" options=${GRADS} value=${grad} />
    <div class="cards">
      ${figures.map(([key, value, text]) => html`<section class="card" key=${key} data-figure=${key} aria-label=${text}><p class="figure">${value}</p><p>${text}</p></section>`)}
    </div>
    ${grad !== "enabled" && html`<p><b>The tape is empty.</b> The same ${forward.length} operators ran, and nothing waits for a backward pass: ${bytes(finding.held.storage_bytes)} less to keep than with grad mode on.</p>`}`;
}

function Found({ lab, finding }) {
  const { grad, forward, backward } = runOf(lab, finding);
  return html`<h2>${finding.source}, on ${finding.device}</h2>
    <${TapeDrawing} forward=${forward} backward=${backward} />
    <p class="note">Left to right: the operators in order. Below each, the node that autograd made for it; backward runs right to left, along the curves, down to the leaves that get a gradient. Between them the saved tensors with their bytes: <span class="own">memory that only the tape keeps alive</span>, or <span class="kept">a parameter or input that is there anyway</span>.</p>
    <${Forward} forward=${forward} backward=${backward} />
    ${grad === "enabled" && html`<${Backward} backward=${backward} />`}
    <${Steps} finding=${finding} />
    <${Question} ask="Which node keeps the most memory alive that nobody else needs, and what would it keep under no_grad?" answer=${answer(finding)} missing="This computation saves nothing of its own: try a product or the block." />
    <${DataLink} data=${finding} name="tape" />`;
}

function Forward({ forward, backward }) {
  const columns = [
    { key: "place", title: "#", numeric: true },
    { key: "operator", title: "operator", show: ({ operator }) => shortName(operator) },
    { key: "shape", title: "result", show: (row) => shape(row.shape) },
    { key: "new_bytes", title: "new memory", numeric: true, show: (row) => (row.new_bytes ? bytes(row.new_bytes) : row.is_view ? "view" : null) },
    { key: "node", title: "recorded as", show: ({ node }) => (node === null ? null : `${node} ${backward[node]?.name}`) },
  ];
  return html`<${Table} caption="Forward, in order" columns=${columns} rows=${forward.map((operator, place) => ({ ...operator, place }))} />`;
}

function Backward({ backward }) {
  const columns = [
    { key: "index", title: "#", numeric: true },
    { key: "name", title: "node" },
    { key: "feeds", title: "feeds", show: ({ feeds }) => feeds.join(", ") || null },
    { key: "saved", title: "keeps", show: ({ saved }) => (saved.length ? saved.map((tensor) => html`<div>${savedText(tensor)}</div>`) : null) },
    { key: "bytes", title: "bytes", numeric: true, show: (node) => bytes(savedBytes(node)) },
  ];
  return html`<${Table} caption="Backward, in the order in which autograd would run it" columns=${columns} rows=${backward} />`;
}

function Steps({ finding }) {
  const columns = [
    { key: "mode", title: "mode" },
    { key: "tensors", title: "saved tensors", numeric: true, show: ({ held }) => held.tensors },
    { key: "tape", title: "tape", numeric: true, show: ({ held }) => bytes(held.storage_bytes) },
    { key: "own", title: "own", numeric: true, show: ({ held }) => bytes(held.own_bytes) },
    { key: "peak", title: "peak of the step", numeric: true, show: ({ step }) => bytes(step.peak_bytes) },
    { key: "allocations", title: "allocations", numeric: true, show: ({ step }) => step.allocations },
  ];
  return html`<${Table} caption=${`One ${finding.phase} step of the served model, batch ${finding.batch_bucket}`} columns=${columns} rows=${finding.steps} />`;
}

function answer(finding) {
  const own = (node) => node.saved.filter(({ kind }) => kind === "intermediate").reduce((sum, tensor) => sum + tensor.tensor_bytes, 0);
  const most = [...finding.backward].sort((a, b) => own(b) - own(a))[0];
  if (!most || own(most) === 0) return null;
  const under = finding.untaped.find(({ grad }) => grad === "no_grad");
  return `${most.name} (node ${most.index}) keeps ${bytes(own(most))}; of the whole tape ${bytes(finding.held.own_bytes)} are kept by nothing else. Under no_grad autograd kept ${bytes(under.held.storage_bytes)} in ${under.held.tensors} tensors.`;
}
