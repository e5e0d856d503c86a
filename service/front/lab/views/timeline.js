// Timeline: one step of two modes, host and device, on one axis.

import { html } from "../vendor/htm-preact.js";
import { DataLink, QueryChoice, Question, StepChoice, chosen, modeOptions, readyModes, stepOf } from "../parts/controls.js";
import { Interval, percent } from "../parts/numbers.js";
import { StudyRun, useStudy } from "../parts/study.js";
import { Speedup, Summary, Tax, Tracks } from "../parts/timeline.js";

export const name = "timeline";
export const title = "Timeline";
export const needs = ["timeline"];
export const sentence =
  "One step of two modes on one time axis: what the host issues, what runs on the device, and which share of the step" +
  " was no kernel: the tax.";

const EMPTY = "No step has been drawn yet: draw one; it takes a few seconds, more where a mode has to be compiled.";

export function View({ lab }) {
  const study = useStudy(lab, "timeline");
  const step = stepOf(lab);
  const others = lab.modes.filter((each) => each.mode !== step.mode);
  const names = readyModes(others);
  const against = chosen(lab, "against", names, names.includes("compiled") ? "compiled" : names.at(-1));
  const body = { ...step, against: against ?? null };
  return html`<div class="columns">
      <section class="card" aria-label="Which steps">
        <${QueryChoice} lab=${lab} name="mode" label="Mode" options=${modeOptions(lab.modes)} value=${step.mode} />
        <${QueryChoice} lab=${lab} name="against" label="Against" options=${modeOptions(others)} value=${against} />
        <${StepChoice} lab=${lab} />
      </section>
      <${StudyRun} study=${study} body=${body} label="Draw both steps" empty=${EMPTY}>
        ${(finding) => html`<${Figures} finding=${finding} />`}
      <//>
    </div>
    ${study.kept && html`<${Found} lab=${lab} kept=${study.kept} />`}`;
}

/** The step of each mode, the tax on it, and the speed-up. */
function Figures({ finding }) {
  return html`<div class="cards">
    ${finding.tracks.map((track) => html`<${Step} track=${track} key=${track.mode} />`)}
    ${finding.speedup && html`<${Speedup} finding=${finding} />`}
  </div>`;
}

function Step({ track }) {
  return html`<section class="card" aria-label=${`the step of ${track.mode}`}>
    <h2>${track.mode}</h2>
    <p><${Interval} ...${track.wall} large /></p>
    <p>Tax: <${Tax} track=${track} /></p>
  </section>`;
}

function Found({ lab, kept }) {
  const { finding } = kept;
  return html`<h2>One ${finding.phase} step, batch ${finding.batch_bucket}, ${finding.device}</h2>
    <${Tracks} tracks=${finding.tracks} key=${kept.id} />
    <${Summary} finding=${finding} />
    ${finding.notes.map((note) => html`<p class="note" key=${note}>${note}</p>`)}
    <${Question} ask="If every kernel took no time at all, how long would the first mode's step still be?"
      answer=${answer(finding.tracks[0])} missing="A tax has to be known for that." />
    ${finding.files.map((file) => html`<${Trace} lab=${lab} address=${`/v1/studies/${kept.id}/files/${file}`} key=${file} />`)}
    <${DataLink} data=${finding} name="timeline" />`;
}

/** With a key the trace cannot be opened by its address, as a link carries no key. */
function Trace({ lab, address }) {
  if (lab.keyed) return html`<p class="note">The trace for Perfetto: GET ${address}, with the key.</p>`;
  return html`<p><a href=${address} download>Save the trace for Perfetto</a></p>`;
}

function answer({ mode, tax, wall }) {
  if (tax === null) return null;
  const left = html`<${Interval} value=${tax.fraction.value * wall.value} why="a product of two measured values" />`;
  return html`${left}: the tax of ${percent(tax.fraction.value)} on ${mode}'s step of <${Interval} ...${wall} />.
    That time is Python, binding, dispatcher and launches.`;
}
