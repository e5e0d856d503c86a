// A whole step as a list: every call below autograd, with its keys; copies, sync points and views marked.

import { html, useState } from "../vendor/htm-preact.js";
import { Choice } from "./controls.js";
import { Interval } from "./interval.js";
import { bytes, percent, significant } from "./numbers.js";
import { Table } from "./table.js";

const MICRO = 1e6;

/** `finding`: of the study `operators`. */
export function StepList({ finding }) {
  const [shown, setShown] = useState("all");
  const every = markedRows(finding);
  const rows = {
    all: every,
    copies: every.filter(({ copies }) => copies.length > 0),
    syncs: every.filter(({ syncs }) => syncs.length > 0),
    views: every.filter(({ is_view }) => is_view),
  };
  const options = Object.entries(rows).map(([kind, of]) => ({ value: kind, label: `${kind} (${of.length})` }));
  const caption =
    `The step's calls in order: medians of ${finding.step_seconds.samples} steps, each less the profiler's own` +
    ` ${significant(finding.event_seconds * MICRO)} µs per inner event`;
  return html`<${Figures} finding=${finding} />
    <${Choice} label="Show" options=${options} value=${shown} onChange=${setShown} />
    ${rows[shown].length > 0
      ? html`<${Table} caption=${caption} columns=${COLUMNS} rows=${rows[shown]} identify=${({ place }) => place} />`
      : html`<p class="absent">This step has no ${shown}.</p>`}
    ${finding.notes.map((note) => html`<p class="note" key=${note}>${note}</p>`)}`;
}

function Figures({ finding }) {
  const { mode, phase, device, step_seconds: step, operators, operators_share, copies, syncs } = finding;
  const copied = bytes(copies.reduce((sum, copy) => sum + copy.bytes, 0));
  const whole = device === "cpu" ? "the whole step" : "until the call returns";
  return html`<div class="cards">
      <section class="card" aria-label="the step">
        <h3>${mode}, ${phase}</h3>
        <${Interval} value=${step.median_seconds} low=${step.low} high=${step.high} samples=${step.samples} large />
        <p>${whole}</p>
      </section>
      <${Figure} label="calls" value=${operators.length} text=${`calls below autograd, ${percent(operators_share)} of the step`} />
      <${Figure} label="copies" value=${copies.length} text=${`copies, ${copied}`} />
      <${Figure} label="sync points" value=${syncs.length}
        text=${`sync points${device === "cpu" ? "; on a CPU none of them waits" : ""}`} />
    </div>
    ${finding.reason && html`<p class="note">Runs as ${finding.effective}: ${finding.reason}.</p>`}
    ${finding.graphs !== null && html`<p>${compilerText(finding)}</p>`}`;
}

function Figure({ label, value, text }) {
  return html`<section class="card" aria-label=${label}><p class="figure">${value}</p><p>${text}</p></section>`;
}

function compilerText({ graphs, graph_break_count, guards, recompiles }) {
  return `The compiler made of it: graphs ${graphs}, breaks ${graph_break_count}, guards ${guards.length}, recompilations ${recompiles}.`;
}

const COLUMNS = [
  { key: "place", title: "#", numeric: true },
  { key: "name", title: "operator", show: nameOf },
  { key: "marks", title: "marks", show: marksOf },
  { key: "keys", title: "keys", show: ({ keys }) => keys?.join(" ") ?? "not known" },
  { key: "shapes", title: "shapes", show: ({ shapes }) => shapes.map((sizes) => sizes.join("×") || "scalar").join(", ") },
  { key: "host", title: "µs", numeric: true, show: (row) => significant(row.host_seconds * MICRO) },
  { key: "sum", title: "sum, µs", numeric: true, show: (row) => significant(row.cumulative_seconds * MICRO, 4) },
  { key: "lead", title: "before, µs", numeric: true, show: (row) => significant(row.lead_seconds * MICRO) },
  { key: "line", title: "called at" },
];

function markedRows({ operators, copies, syncs }) {
  const at = (marks, place) => marks.filter(({ operator }) => operator === place);
  return operators.map((row, place) => ({ ...row, place, copies: at(copies, place), syncs: at(syncs, place) }));
}

function nameOf({ name, overload, within }) {
  const own = name.replace("aten::", "") + (overload === "default" ? "" : `.${overload}`);
  return html`<span title=${within.length ? `within ${within.join(", ")}` : name}>${own}</span>`;
}

function marksOf({ copies, syncs, is_view }) {
  return html`${copies.map((copy) => html`<span class="mark copy">copies ${bytes(copy.bytes)}</span> `)}
    ${syncs.map(({ kind }) => html`<span class="mark sync">sync: ${kind.replaceAll("_", " ")}</span> `)}
    ${is_view && html`<span class="mark">view</span>`}`;
}
