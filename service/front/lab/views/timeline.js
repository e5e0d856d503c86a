// Timeline: one step of two modes, host and device, on one axis.

import { html } from "../vendor/htm-preact.js";
import { PHASES, QueryChoice, chosen } from "../parts/choices.js";
import { DataLink } from "../parts/data.js";
import { batchSizes, modeOptions, readyModes } from "../parts/input.js";
import { Interval } from "../parts/interval.js";
import { significant } from "../parts/numbers.js";
import { Question } from "../parts/question.js";
import { StudyRun, useStudy } from "../parts/study.js";
import { Table } from "../parts/table.js";
import { Tracks } from "../parts/tracks.js";

export const name = "timeline";
export const title = "Timeline";
export const sentence = "One step of two modes on one time axis: what the host issues, what runs on the device, and which share of the step was no kernel: the tax.";

export function View({ lab }) {
  const study = useStudy(lab, "timeline");
  const ready = readyModes(lab.modes);
  const mode = chosen(lab, "mode", ready, ready[0]);
  const others = ready.filter((each) => each !== mode);
  const against = chosen(lab, "against", others, others.includes("compiled") ? "compiled" : others.at(-1));
  const batch = chosen(lab, "batch", batchSizes(lab.engine), batchSizes(lab.engine)[0]);
  const phase = chosen(lab, "phase", ["decode", "prefill"], "decode");
  const body = { mode, against: against ?? null, batch_size: batch, phase };
  return html`<div class="columns">
      <section class="card" aria-label="Which steps">
        <${QueryChoice} lab=${lab} name="mode" label="Mode" options=${modeOptions(lab.modes)} value=${mode} />
        <${QueryChoice} lab=${lab} name="against" label="Against" options=${modeOptions(lab.modes.filter((each) => each.mode !== mode))} value=${against} />
        <${QueryChoice} lab=${lab} name="batch" label="Batch" options=${batchSizes(lab.engine)} value=${batch} />
        <${QueryChoice} lab=${lab} name="phase" label="Phase" options=${PHASES} value=${phase} />
      </section>
      <${StudyRun} study=${study} body=${body} label="Draw both steps" empty="No step has been drawn yet: draw one; it takes a few seconds, more where a mode has to be compiled.">
        ${(finding) => html`<${Figures} finding=${finding} />`}
      <//>
    </div>
    ${study.kept && html`<${Found} lab=${lab} kept=${study.kept} />`}`;
}

/** The step of each mode, the tax on it, and the speed-up. */
function Figures({ finding }) {
  return html`<div class="cards">
    ${finding.tracks.map(
      (track) => html`<section class="card" key=${track.mode} aria-label=${`the step of ${track.mode}`}>
        <h2>${track.mode}</h2>
        <${Interval} ...${track.wall} large />
        <p>Tax: <${Tax} track=${track} /></p>
      </section>`,
    )}
    ${finding.speedup && html`<section class="card" aria-label="speed-up">
      <h2>${finding.tracks[1].mode} against ${finding.tracks[0].mode}</h2>
      <${Interval} ...${finding.speedup} unit="×" large />
      <p>as fast, ${finding.speedup.samples} paired rounds. ${fused(finding.tracks)}</p>
    </section>`}
  </div>`;
}

function Tax({ track }) {
  if (track.tax === null) return html`<${Interval} value=${null} why=${track.no_tax} />`;
  const { value, low, high, samples } = track.tax.fraction;
  const percent = (share) => (share === null ? null : 100 * share);
  return html`<${Interval} value=${percent(value)} low=${percent(low)} high=${percent(high)} samples=${samples} unit="%" />`;
}

const isCompiled = (track) => track.blocks.some(({ kind }) => kind === "compiled");

/** What fusing did, where one of both is compiled. */
function fused([first, second]) {
  const calls = `${first.operators} calls into the dispatcher in ${first.mode}, ${second.operators} in ${second.mode}`;
  const kernels = first.kernels === null || second.kernels === null ? "" : `; ${first.kernels} kernels against ${second.kernels}`;
  return `${fusing(isCompiled(first), isCompiled(second))}: ${calls}${kernels}.`;
}

function fusing(first, second) {
  if (first === second) return first ? "Both are fused" : "Neither is fused";
  return first ? "Fused against unfused" : "Unfused against fused";
}

function Found({ lab, kept }) {
  const { finding } = kept;
  return html`<h2>One ${finding.phase} step, batch ${finding.batch_bucket}, ${finding.device}</h2>
    <${Tracks} tracks=${finding.tracks} key=${kept.id} />
    <${Summary} finding=${finding} />
    <${Question} ask="If every kernel took no time at all, how long would the first mode's step still be?" answer=${answer(finding.tracks[0])} missing="A tax has to be known for that." />
    <${Traces} lab=${lab} kept=${kept} />
    <${DataLink} data=${finding} name="timeline" />`;
}

/** With a key the trace cannot be opened by its address, as a link carries no key. */
function Traces({ lab, kept }) {
  const address = (file) => `/v1/studies/${kept.id}/files/${file}`;
  return kept.finding.files.map((file) =>
    lab.keyed ? html`<p class="note">The trace for Perfetto: GET ${address(file)}, with the key.</p>` : html`<p><a href=${address(file)} download>Save the trace for Perfetto</a></p>`,
  );
}

function Summary({ finding }) {
  const columns = [
    { key: "mode", title: "mode" },
    { key: "effective", title: "runs as" },
    { key: "wall", title: "step", numeric: true, show: (track) => html`<${Interval} ...${track.wall} />` },
    { key: "tax", title: "tax", numeric: true, show: (track) => html`<${Tax} track=${track} />` },
    { key: "operators", title: "calls", numeric: true },
    { key: "launches", title: "launches", numeric: true },
    { key: "kernels", title: "kernels", numeric: true },
    { key: "stretch", title: "under the profiler", numeric: true, show: (track) => `× ${significant(track.stretch)}` },
  ];
  const hows = new Set(finding.tracks.map((track) => track.tax?.how ?? `not known: ${track.no_tax}`));
  return html`<${Table} caption="Both steps, measured without the profiler" columns=${columns} rows=${finding.tracks} />
    <p class="note">Blocks are times under the profiler, which lengthens a step by the factor in the last column: they show the order of events. Tax: ${[...hows].join("; ")}. A dash: a ${finding.device === "cpu" ? "CPU launches nothing and has no kernels apart from the calls" : "count that the profiler could not take"}.</p>`;
}

function answer(track) {
  if (track.tax === null) return null;
  const share = track.tax.fraction.value;
  const least = track.tax.source === "floor" ? "at least " : "";
  return html`${least}<${Interval} value=${share * track.wall.value} why="a product of two measured values" /> of ${track.mode}'s step, which is its tax: ${significant(100 * share)} % of <${Interval} ...${track.wall} />. That time is Python, binding, dispatcher and launches.`;
}
