// What a probe found: the step without and with its fault, the counter, the line to blame and the cure.

import { html } from "../vendor/htm-preact.js";
import { Interval } from "./interval.js";
import { significant, whole } from "./numbers.js";

const SAME = "no detectable difference";

const seconds = ({ median_seconds, low, high, samples = null }) => ({ value: median_seconds, low, high, samples });
const count = (value) => (Number.isInteger(value) ? whole(value) : significant(value));
const counterName = ({ counter }) => counter.name.replaceAll("_", " ");

/** `result`: the answer of POST /v1/probes/{name}. */
export function ProbeResult({ result }) {
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
  return `One ${phase} step of ${layers} layers, batch ${batch_size}, ${device}, on a copy of the model: serving is not touched.`;
}

const side = (found) => html`<${Interval} ...${seconds(found)} />`;
const moved = (row) => `${counterName(row)}: ${count(row.counter.before)} → ${count(row.counter.after)}`;

/** Of a table with a row per result. */
export const RESULT_COLUMNS = [
  { key: "name", title: "probe" },
  { key: "without", title: "without", numeric: true, show: (row) => side(row.without) },
  { key: "with", title: "with", numeric: true, show: (row) => side(row.with) },
  { key: "verdict", title: "verdict" },
  { key: "counter", title: "counter", show: moved },
];

/** Which counter the fault moves, and by how much, in a sentence. */
export function resultAnswer(result) {
  const { counter, blame, verdict } = result;
  const by = counter.after - counter.before;
  const from = `moves from ${count(counter.before)} to ${count(counter.after)}, by ${count(by)}`;
  const time = verdict === SAME && by !== 0 ? " The time of the step does not show it here, the counter does." : "";
  return `The counter "${counterName(result)}" ${by === 0 ? "does not move here" : from}, because of ${blame}.${time}`;
}
