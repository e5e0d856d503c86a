// Probes: one pitfall at a time, live: the step without it and with it, the line to blame, and what it means.

import { html, useState } from "../vendor/htm-preact.js";
import { chosen } from "../parts/choices.js";
import { Choice } from "../parts/controls.js";
import { DataLink } from "../parts/data.js";
import { Interval } from "../parts/interval.js";
import { significant, whole } from "../parts/numbers.js";
import { Question } from "../parts/question.js";
import { Empty, Failed, Loading } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { useLoaded, useWork } from "../parts/work.js";

export const name = "probes";
export const title = "Probes";
export const sentence = "One pitfall at a time, live: the step without and with the fault, the counter that it moves, the line to blame and the cure.";

export function View({ lab }) {
  const [list, reload] = useLoaded(async (signal) => (await lab.get("/v1/probes", { signal })).probes);
  if (list.problem) return html`<${Failed} problem=${list.problem} onRetry=${reload} />`;
  if (list.value === null) return html`<${Loading} what="asking the service for its probes" />`;
  return html`<${Probes} lab=${lab} probes=${list.value} />`;
}

function Probes({ lab, probes }) {
  const [work, run, cancel] = useWork();
  const [results, setResults] = useState({});
  const names = probes.map((probe) => probe.name);
  const picked = chosen(lab, "probe", names, names[0]);
  const [running, setRunning] = useState(null);
  const start = () => {
    setRunning(picked);
    return run(async (signal) => {
      const found = await lab.post(`/v1/probes/${picked}`, {}, { signal });
      setResults((before) => ({ ...before, [picked]: found }));
      return found;
    });
  };
  const result = results[picked];
  const failed = work.problem && running === picked;
  const measured = names.filter((each) => results[each]).map((each) => results[each]);
  return html`<div class="columns">
      <section class="card" aria-label="Which probe">
        <${Choice} label="Probe" options=${names} value=${picked} onChange=${(probe) => lab.changeQuery({ probe })} />
      </section>
      <section class="study" aria-label=${picked}>
        <h2 class="first">${picked}</h2>
        <p>It shows that ${probes.find((probe) => probe.name === picked).teaches}.</p>
        <p class="row"><button type="button" class="primary" disabled=${work.running} onClick=${start}>Run ${picked}</button></p>
        ${work.running && html`<${Loading} what=${`running ${running}, while the engine pauses: some seconds, a minute where it compiles`} onCancel=${cancel} />`}
        ${failed && html`<${Failed} problem=${work.problem} onRetry=${start} />`}
        ${result ? html`<${Result} result=${result} key=${picked} />` : !work.running && !failed && html`<${Empty}>This probe has not run on this page yet.<//>`}
        <${Question} ask=${ASK[picked] ?? "Put this fault into the loop: which counter moves, and by how much?"} answer=${result && answer(result)} missing="Run the probe." key=${`question ${picked}`} />
      </section>
    </div>
    ${measured.length > 1 && html`<${Table} caption="Run on this page" columns=${COLUMNS} rows=${measured} identify=${(row) => row.name} />`}
    <${DataLink} data=${result} name=${`probe-${picked}`} />`;
}

const ASK = {
  "sync-point": "Add .item() to the loop: which counter moves, and by how much?",
  "hidden-copy": "Hand a transposed view to an operator: which counter moves, and by how much?",
};

const seconds = ({ median_seconds, low, high, samples = null }) => ({ value: median_seconds, low, high, samples });

function Result({ result }) {
  const scale = Math.max(result.without.median_seconds, result.with.median_seconds);
  return html`<div class="probe" data-probe=${result.name}>
    ${["without", "with"].map((side) => html`<div class="side" data-side=${side} key=${side}>
      <h3>${side} the fault</h3>
      <div class="track" aria-hidden="true"><span class="segment ${side}" style=${{ width: `${(100 * result[side].median_seconds) / scale}%` }}></span></div>
      <${Interval} ...${seconds(result[side])} large />
    </div>`)}
    ${result.ratio && html`<p class="verdict"><b>${verdictText(result.verdict)}</b>: <${Interval} ...${result.ratio} unit="×" /> as long.</p>`}
    <dl>
      <dt>Counter</dt><dd class="counter">${counterName(result)}: <b>${count(result.counter.before)}</b> without, <b>${count(result.counter.after)}</b> with</dd>
      <dt>Line to blame</dt><dd><code>${result.blame}</code></dd>
      <dt>Cure</dt><dd>${result.cure}</dd>
    </dl>
    ${(result.notes ?? []).map((note) => html`<p class="note" key=${note}>${note}</p>`)}
    ${result.phase && html`<p class="note">One ${result.phase} step of ${result.layers} layers, batch ${result.batch_size}, ${result.device}; a copy of the model, so that serving is not touched.</p>`}
  </div>`;
}

const count = (value) => (Number.isInteger(value) ? whole(value) : significant(value));
const counterName = ({ counter }) => counter.name.replaceAll("_", " ");
const verdictText = (verdict) => (verdict === "no detectable difference" ? "No detectable difference in time" : `The step is ${verdict}`);

const COLUMNS = [
  { key: "name", title: "probe" },
  { key: "without", title: "without", numeric: true, show: (row) => html`<${Interval} ...${seconds(row.without)} />` },
  { key: "with", title: "with", numeric: true, show: (row) => html`<${Interval} ...${seconds(row.with)} />` },
  { key: "verdict", title: "verdict" },
  { key: "counter", title: "counter", show: (row) => `${counterName(row)}: ${count(row.counter.before)} → ${count(row.counter.after)}` },
];

function answer({ counter, blame, verdict }) {
  const moved = counter.after - counter.before;
  const by = moved === 0 ? "does not move here" : `moves from ${count(counter.before)} to ${count(counter.after)}, by ${count(moved)}`;
  const time = verdict === "no detectable difference" ? "The time of the step does not show it here, the counter does." : "";
  return `The counter "${counterName({ counter })}" ${by}, because of ${blame}. ${time}`;
}
