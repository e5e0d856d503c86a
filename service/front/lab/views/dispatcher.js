// Dispatcher: one operator's way from Python to its kernel, and a whole step of such calls.

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { PHASES, QueryChoice, chosen } from "../parts/choices.js";
import { Switch } from "../parts/controls.js";
import { DataLink } from "../parts/data.js";
import { batchSizes, modeOptions, readyModes } from "../parts/input.js";
import { Interval } from "../parts/interval.js";
import { Keys } from "../parts/keys.js";
import { percent } from "../parts/numbers.js";
import { Question } from "../parts/question.js";
import { SLICE_COLUMNS, Scrubber, agreementText, micros } from "../parts/slices.js";
import { StepList } from "../parts/steplist.js";
import { StudyRun, useStudy } from "../parts/study.js";
import { Empty } from "../parts/states.js";
import { Table } from "../parts/table.js";

export const name = "dispatcher";
export const title = "Dispatcher";
export const sentence = "One operator's way through Python, binding, autocast, autograd and the backend to its kernel, each slice with its measured time; then every call of a whole step.";

/** The calls that the study knows. */
export const CALLS = [
  "torch.add(x, y)", "torch.mul(x, y)", "torch.exp(x)", "torch.relu(x)", "torch.sum(x)", "torch.softmax(x, -1)",
  "torch.transpose(x, 0, 1)", "torch.matmul(x, weight)", "F.layer_norm(x, shape, weight, bias)",
];

const GRADS = [
  { value: "enabled", label: "on" },
  { value: "no_grad", label: "no_grad" },
  { value: "inference_mode", label: "inference mode" },
];
const SIZES = [8, 64, 256, 512];

export const View = ({ lab }) => html`<${OneCall} lab=${lab} /><${WholeStep} lab=${lab} />`;

/** The call and the state of torch that the switches stand for: the arguments of the study. */
function switchesOf(lab) {
  return {
    expression: chosen(lab, "call", CALLS, CALLS[0]),
    size: chosen(lab, "size", SIZES, SIZES[1]),
    grad: chosen(lab, "grad", GRADS.map(({ value }) => value), "enabled"),
    autocast: lab.query.autocast === "on",
    requires_grad: lab.query.requires !== "off",
  };
}

const sameRun = (finding, switches) => Object.entries(switches).every(([key, value]) => finding[key] === value);
const switchesIn = ({ expression, size, grad, autocast, requires_grad }) => ({ expression, size, grad, autocast, requires_grad });
const queryOf = ({ expression, size, grad, autocast, requires_grad }) => ({ call: expression, size, grad, autocast: autocast ? "on" : null, requires: requires_grad ? null : "off" });

/** Every run of this page, the newest of equal ones; the switches follow a finding that a link has opened. */
function useRuns(lab, study) {
  const [runs, setRuns] = useState([]);
  useEffect(() => {
    if (study.kept === null) return;
    const { finding } = study.kept;
    setRuns((before) => [...before.filter((run) => !sameRun(run, switchesIn(finding))), finding]);
    lab.changeQuery(queryOf(finding));
  }, [study.kept]);
  return runs;
}

function OneCall({ lab }) {
  const study = useStudy(lab, "operator");
  const switches = switchesOf(lab);
  const runs = useRuns(lab, study);
  const shown = runs.find((finding) => sameRun(finding, switches));
  const [at, setAt] = useState(0);
  const empty = "No call has been measured yet: measure one; it takes a few seconds, and half a minute the first time, when its loops are compiled.";
  return html`<div class="columns">
      <${Switches} lab=${lab} switches=${switches} />
      <${StudyRun} study=${study} body=${switches} label="Measure this call" empty=${empty}>
        ${() => (shown ? html`<${Scrubber} finding=${shown} at=${at} onMove=${setAt} /><p class=${shown.agrees ? "note" : "note warn"}>${agreementText(shown)}</p>` : html`<${Empty}>This call has not been measured with these switches: measure it.<//>`)}
      <//>
    </div>
    ${shown && html`<h2>${shown.expression} on ${shown.size} × ${shown.size}, ${shown.dtype}, ${shown.device}</h2>
      <${Table} caption="Slices, from the user's line inwards" columns=${SLICE_COLUMNS} rows=${shown.slices} />
      <${Keys} finding=${shown} />`}
    ${runs.length > 1 && html`<${Table} caption="Measured on this page" columns=${RUN_COLUMNS} rows=${runs} />`}
    ${runs.length > 0 && html`<${Question} ask="Switch to inference mode: which slice goes, and which share of the call was it?" answer=${answer(runs, switches)} missing="Measure this call with grad mode on, and again in inference mode." />
      <${DataLink} data=${shown} name="operator" />`}`;
}

function Switches({ lab, switches }) {
  return html`<section class="card" aria-label="Which call">
    <${QueryChoice} lab=${lab} name="call" label="Call" options=${CALLS} value=${switches.expression} />
    <${QueryChoice} lab=${lab} name="size" label="On float32 tensors of" options=${SIZES.map((size) => ({ value: size, label: `${size} × ${size}` }))} value=${switches.size} />
    <${QueryChoice} lab=${lab} name="grad" label="Grad mode" options=${GRADS} value=${switches.grad} />
    <${Switch} label="Autocast to bfloat16" checked=${switches.autocast} onChange=${(on) => lab.changeQuery({ autocast: on ? "on" : null })} />
    <${Switch} label="The tensors require grad" checked=${switches.requires_grad} onChange=${(on) => lab.changeQuery({ requires: on ? null : "off" })} />
  </section>`;
}

const sliceOf = (finding, wanted) => finding.slices.find((slice) => slice.name === wanted);

const RUN_COLUMNS = [
  { key: "expression", title: "call" },
  { key: "size", title: "size", numeric: true },
  { key: "grad", title: "grad mode", show: ({ grad }) => GRADS.find(({ value }) => value === grad).label },
  { key: "autocast", title: "autocast", show: ({ autocast }) => (autocast ? "on" : "off") },
  { key: "requires_grad", title: "requires grad", show: ({ requires_grad }) => (requires_grad ? "yes" : "no") },
  { key: "whole", title: "the whole call", numeric: true, show: ({ whole_microseconds }) => html`<${Interval} ...${micros(whole_microseconds)} />` },
];

function answer(runs, { expression, size, autocast }) {
  const of = (grad) => runs.findLast((run) => sameRun(run, { expression, size, autocast, grad, requires_grad: true }));
  const [taped, untaped] = [of("enabled"), of("inference_mode")];
  if (!taped || !untaped) return null;
  const autograd = sliceOf(taped, "autograd").microseconds;
  return html`Autograd: <${Interval} ...${micros(autograd)} />, ${percent(autograd.value / taped.whole_microseconds.value)} of the call with grad mode on. The whole call took <${Interval} ...${micros(taped.whole_microseconds)} /> then, and <${Interval} ...${micros(untaped.whole_microseconds)} /> in inference mode; its keys there: ${untaped.key_set.join(", ")}.`;
}

function WholeStep({ lab }) {
  const study = useStudy(lab, "operators", "step");
  const ready = readyModes(lab.modes);
  const mode = chosen(lab, "mode", ready, ready[0]);
  const batch = chosen(lab, "batch", batchSizes(lab.engine), batchSizes(lab.engine)[0]);
  const phase = chosen(lab, "phase", ["decode", "prefill"], "decode");
  return html`<h2>A whole step</h2>
    <section class="card" aria-label="Which step">
      <${QueryChoice} lab=${lab} name="mode" label="Mode" options=${modeOptions(lab.modes)} value=${mode} />
      <${QueryChoice} lab=${lab} name="batch" label="Batch" options=${batchSizes(lab.engine)} value=${batch} />
      <${QueryChoice} lab=${lab} name="phase" label="Phase" options=${PHASES} value=${phase} />
      <${StudyRun} study=${study} body=${{ mode, batch_size: batch, phase }} label="List the step" empty="No step has been listed yet: list one; it takes some seconds.">
        ${(finding) => html`<${StepList} finding=${finding} />`}
      <//>
    </section>
    ${study.kept && html`<${DataLink} data=${study.kept.finding} name="step" />`}`;
}
