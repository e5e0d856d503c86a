// Dispatcher: one operator's way from Python to its kernel, and a whole step of such calls.

import { html, useState } from "../vendor/htm-preact.js";
import { DataLink, Empty, QueryChoice, Question, StepChoice, Table, modeOptions, stepOf } from "../parts/controls.js";
import {
  CALLS, Keys, SLICE_COLUMNS, Scrubber, StepList, Switches, agreementText, autogradShare, micros, sameRun,
  switchesOf, useRuns,
} from "../parts/dispatcher.js";
import { Interval } from "../parts/numbers.js";
import { StudyRun, useStudy } from "../parts/study.js";

export { CALLS };
export const name = "dispatcher";
export const title = "Dispatcher";
export const needs = ["operator", "operators"];
export const sentence =
  "One operator's way through Python, binding, autocast, autograd and the backend to its kernel, each slice with its" +
  " measured time; then every call of a whole step.";

const NO_CALL =
  "No call has been measured yet: measure one; it takes a few seconds, and up to a minute the first time, when its" +
  " loops are compiled.";
const NOT_SO = "This call has not been measured with these switches: measure it.";

export const View = ({ lab }) => html`<${OneCall} lab=${lab} /><${WholeStep} lab=${lab} />`;

function OneCall({ lab }) {
  const study = useStudy(lab, "operator");
  const switches = switchesOf(lab);
  const runs = useRuns(lab, study);
  const shown = runs.find((finding) => sameRun(finding, switches));
  const content = () => (shown ? html`<${Scrubbed} finding=${shown} />` : html`<${Empty}>${NOT_SO}<//>`);
  return html`<div class="columns">
      <${Switches} lab=${lab} switches=${switches} />
      <${StudyRun} study=${study} body=${switches} label="Measure this call" empty=${NO_CALL}>${content}<//>
    </div>
    ${shown && html`<${Call} finding=${shown} />`}
    ${runs.length > 1 && html`<${Table} caption="Measured on this page" columns=${RUN_COLUMNS} rows=${runs} />`}
    ${runs.length > 0 && html`<${Asked} runs=${runs} switches=${switches} />`}
    <${DataLink} data=${shown} name="operator" />`;
}

function Scrubbed({ finding }) {
  const [at, setAt] = useState(0);
  return html`<${Scrubber} finding=${finding} at=${at} onMove=${setAt} />
    <p class=${finding.agrees ? "note" : "note warn"}>${agreementText(finding)}</p>`;
}

function Call({ finding }) {
  const { expression, size, dtype, device, slices } = finding;
  return html`<h2>${expression} on ${size} × ${size}, ${dtype}, ${device}</h2>
    <${Table} caption="Slices, from the user's line inwards" columns=${SLICE_COLUMNS} rows=${slices} />
    <${Keys} finding=${finding} />`;
}

const RUN_COLUMNS = [
  { key: "expression", title: "call" },
  { key: "size", title: "size", numeric: true },
  { key: "grad", title: "grad mode" },
  { key: "autocast", title: "autocast", show: ({ autocast }) => (autocast ? "on" : "off") },
  { key: "requires_grad", title: "requires grad", show: ({ requires_grad }) => (requires_grad ? "yes" : "no") },
  { key: "whole", title: "the whole call", numeric: true, show: (run) => interval(run.whole_microseconds) },
];

const interval = (found) => html`<${Interval} ...${micros(found)} />`;

function Asked({ runs, switches }) {
  return html`<${Question} ask="Switch to inference mode: which slice goes, and which share of the call was it?"
    answer=${answer(autogradShare(runs, switches))}
    missing="Measure this call with grad mode on, and again in inference mode." />`;
}

function answer(found) {
  if (found === null) return null;
  const { slice, share, taped, untaped } = found;
  return html`Autograd: ${interval(slice)}, ${share} of the call with grad mode on. The whole call took
    ${" "}${interval(taped.whole_microseconds)} then, and ${interval(untaped.whole_microseconds)} in inference mode; its
    keys there: ${untaped.key_set.join(", ")}.`;
}

function WholeStep({ lab }) {
  const study = useStudy(lab, "operators", "step");
  const body = stepOf(lab);
  return html`<h2>A whole step</h2>
    <section class="card" aria-label="Which step">
      <${QueryChoice} lab=${lab} name="mode" label="Mode" options=${modeOptions(lab.modes)} value=${body.mode} />
      <${StepChoice} lab=${lab} />
      <${StudyRun} study=${study} body=${body} label="List the step"
        empty="No step has been listed yet: list one; it takes some seconds.">
        ${(finding) => html`<${StepList} finding=${finding} />`}
      <//>
    </section>
    ${study.kept && html`<${DataLink} data=${study.kept.finding} name="step" />`}`;
}
