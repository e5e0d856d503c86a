// Probes: one pitfall at a time, live: the step without it and with it, the line to blame, and what it means.

import { html, useState } from "../vendor/htm-preact.js";
import { Choice, DataLink, Empty, Failed, Loading, Question, Table, chosen } from "../parts/controls.js";
import { Interval, significant, whole } from "../parts/numbers.js";
import { useLoaded, useWork } from "../parts/study.js";

export const name = "probes";
export const title = "Probes";
export const needs = ["probes"];
export const sentence =
  "One pitfall at a time, live: the step without and with the fault, the counter that it moves, the line to blame and" +
  " the cure.";

/** Questions of their own; another probe is asked about in general. */
const ASK = {
  "sync-point": "Add .item() to the loop: which counter moves, and by how much?",
  "hidden-copy": "Hand a transposed view to an operator: which counter moves, and by how much?",
};
const ASK_ANY = "Put this fault into the loop: which counter moves, and by how much?";

export function View({ lab }) {
  const [list, reload] = useLoaded(async (signal) => (await lab.get("/v1/probes", { signal })).probes);
  if (list.problem) return html`<${Failed} problem=${list.problem} onRetry=${reload} />`;
  if (list.value === null) return html`<${Loading} what="asking the service for its probes" />`;
  return html`<${Probes} lab=${lab} probes=${list.value} />`;
}

function Probes({ lab, probes }) {
  const names = probes.map((probe) => probe.name);
  const picked = chosen(lab, "probe", names, names[0]);
  const { teaches } = probes.find((probe) => probe.name === picked);
  const { results, ...running } = useProbes(lab);
  const result = results[picked];
  const measured = names.filter((each) => results[each]).map((each) => results[each]);
  return html`<div class="columns">
      <section class="card" aria-label="Which probe">
        <${Choice} label="Probe" options=${names} value=${picked} onChange=${(probe) => lab.changeQuery({ probe })} />
      </section>
      <section class="study" aria-label=${picked}>
        <h2 class="first">${picked}</h2>
        <p>It shows that ${teaches}.</p>
        <${Run} ...${running} probe=${picked} result=${result} />
        <${Question} ask=${ASK[picked] ?? ASK_ANY} answer=${result && resultAnswer(result)} missing="Run the probe."
          key=${picked} />
      </section>
    </div>
    ${measured.length > 1 && html`<${Table} caption="Run on this page" columns=${RESULT_COLUMNS} rows=${measured} />`}
    <${DataLink} data=${result} name=${`probe-${picked}`} />`;
}

/** `{results, work, started, start(probe), cancel}`: the newest result of each probe, and the one that runs. */
function useProbes(lab) {
  const [work, run, cancel] = useWork();
  const [results, setResults] = useState({});
  const [started, setStarted] = useState(null);
  const start = (probe) => {
    setStarted(probe);
    return run(async (signal) => {
      const found = await lab.post(`/v1/probes/${encodeURIComponent(probe)}`, {}, { signal });
      setResults((before) => ({ ...before, [probe]: found }));
    });
  };
  return { results, work, started, start, cancel };
}

function Run({ probe, result, work, started, start, cancel }) {
  const problem = started === probe ? work.problem : null;
  const again = () => start(probe);
  const what = `running ${started}, while the engine pauses: some seconds, a minute where it compiles`;
  return html`<p class="row">
      <button type="button" class="primary" disabled=${work.running} onClick=${again}>Run ${probe}</button>
    </p>
    ${work.running && html`<${Loading} what=${what} onCancel=${cancel} />`}
    ${problem && html`<${Failed} problem=${problem} onRetry=${again} />`}
    ${!result && !work.running && !problem && html`<${Empty}>This probe has not run on this page yet.<//>`}
    ${result && html`<${ProbeResult} result=${result} key=${probe} />`}`;
}

// What a probe found: the step without and with its fault, the counter, the line to blame and the cure.

const SAME = "no detectable difference";

const seconds = ({ median_seconds, low, high, samples = null }) => ({ value: median_seconds, low, high, samples });
const count = (value) => (Number.isInteger(value) ? whole(value) : significant(value));
const counterName = ({ counter }) => counter.name.replaceAll("_", " ");

/** `result`: the answer of POST /v1/probes/{name}. */
function ProbeResult({ result }) {
  const { without, with: faulty, ratio, verdict, counter, blame, cure, notes = [] } = result;
  const scale = Math.max(without.median_seconds, faulty.median_seconds);
  return html`<div class="probe" data-probe=${result.name}>
    <${Side} side="without" found=${without} scale=${scale} />
    <${Side} side="with" found=${faulty} scale=${scale} />
    ${ratio && html`<p class="verdict">
      <b>${verdict === SAME ? "No detectable difference in time" : `The step is ${verdict}`}</b>:
      ${" "}<${Interval} ...${ratio} unit="×" /> as long.
    </p>`}
    <dl>
      <dt>Counter</dt>
      <dd class="counter">
        ${counterName(result)}: <b>${count(counter.before)}</b> without, <b>${count(counter.after)}</b> with
      </dd>
      <dt>Line to blame</dt>
      <dd><code>${blame}</code></dd>
      <dt>Cure</dt>
      <dd>${cure}</dd>
    </dl>
    ${notes.map((note) => html`<p class="note" key=${note}>${note}</p>`)}
    <p class="note">${ofStep(result)}</p>
  </div>`;
}

function Side({ side, found, scale }) {
  return html`<div class="side" data-side=${side}>
    <h3>${side} the fault</h3>
    <div class="track" aria-hidden="true">
      <span class="segment ${side}" style=${{ width: `${(100 * found.median_seconds) / scale}%` }}></span>
    </div>
    <${Interval} ...${seconds(found)} large />
  </div>`;
}

function ofStep({ phase, layers, batch_size, device }) {
  const what = layers === null ? "call" : `${phase} step of ${layers} layers`;
  return `One ${what}, batch ${batch_size}, ${device}, on a copy of the model: serving is not touched.`;
}

const side = (found) => html`<${Interval} ...${seconds(found)} />`;
const moved = (row) => `${counterName(row)}: ${count(row.counter.before)} → ${count(row.counter.after)}`;

/** Of a table with a row per result. */
const RESULT_COLUMNS = [
  { key: "name", title: "probe" },
  { key: "without", title: "without", numeric: true, show: (row) => side(row.without) },
  { key: "with", title: "with", numeric: true, show: (row) => side(row.with) },
  { key: "verdict", title: "verdict" },
  { key: "counter", title: "counter", show: moved },
];

/** Which counter the fault moves, and by how much, in a sentence. */
function resultAnswer(result) {
  const { counter, blame, verdict } = result;
  const by = counter.after - counter.before;
  const from = `moves from ${count(counter.before)} to ${count(counter.after)}, by ${count(by)}`;
  const time = verdict === SAME && by !== 0 ? " The time of the step does not show it here, the counter does." : "";
  return `The counter "${counterName(result)}" ${by === 0 ? "does not move here" : from}, because of ${blame}.${time}`;
}
