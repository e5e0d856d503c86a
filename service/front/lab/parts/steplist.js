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
  const rows = markedRows(finding);
  const kinds = ["all", "copies", "syncs", "views"];
  const of = { all: rows, copies: rows.filter((row) => row.copies.length), syncs: rows.filter((row) => row.syncs.length), views: rows.filter((row) => row.is_view) };
  const { median_seconds: value, low, high, samples } = finding.step_seconds;
  return html`<div class="cards">
      <section class="card" aria-label="the step"><h3>${finding.mode}, ${finding.phase}</h3><${Interval} ...${{ value, low, high, samples }} large /><p>${finding.device === "cpu" ? "the whole step" : "until the call returns"}</p></section>
      <section class="card" aria-label="calls"><p class="figure">${rows.length}</p><p>calls below autograd, ${percent(finding.operators_share)} of the step</p></section>
      <section class="card" aria-label="copies"><p class="figure">${finding.copies.length}</p><p>copies, ${bytes(finding.copies.reduce((sum, copy) => sum + copy.bytes, 0))}</p></section>
      <section class="card" aria-label="sync points"><p class="figure">${finding.syncs.length}</p><p>sync points${finding.device === "cpu" ? "; on a CPU none of them waits" : ""}</p></section>
    </div>
    ${finding.reason && html`<p class="note">Runs as ${finding.effective}: ${finding.reason}.</p>`}
    ${finding.graphs !== null && html`<p>The compiler made ${finding.graphs} graph${finding.graphs === 1 ? "" : "s"} of it, with ${finding.graph_break_count} breaks, ${finding.guards.length} guards and ${finding.recompiles} recompilations.</p>`}
    <${Choice} label="Show" options=${kinds.map((kind) => ({ value: kind, label: `${kind} (${of[kind].length})` }))} value=${shown} onChange=${setShown} />
    ${of[shown].length > 0 ? html`<${Table} caption=${`The step's calls in order: medians of ${samples} steps, each less the profiler's own ${significant(finding.event_seconds * MICRO)} µs per inner event`} columns=${COLUMNS} rows=${of[shown]} identify=${(row) => row.place} />` : html`<p class="absent">This step has no ${shown}.</p>`}
    ${finding.notes.map((note) => html`<p class="note" key=${note}>${note}</p>`)}`;
}

const COLUMNS = [
  { key: "place", title: "#", numeric: true },
  { key: "name", title: "operator", show: nameOf },
  { key: "marks", title: "marks", show: marksOf },
  { key: "keys", title: "keys", show: ({ keys }) => keys?.join(" ") ?? "not known" },
  { key: "shapes", title: "shapes", show: ({ shapes }) => shapes.map((sizes) => sizes.join("×") || "scalar").join(", ") },
  { key: "host", title: "µs", numeric: true, show: ({ host_seconds }) => significant(host_seconds * MICRO) },
  { key: "sum", title: "sum, µs", numeric: true, show: ({ cumulative_seconds }) => significant(cumulative_seconds * MICRO, 4) },
  { key: "lead", title: "before, µs", numeric: true, show: ({ lead_seconds }) => significant(lead_seconds * MICRO) },
  { key: "line", title: "called at" },
];

function markedRows({ operators, copies, syncs }) {
  const at = (marks, place) => marks.filter(({ operator }) => operator === place);
  return operators.map((operator, place) => ({ ...operator, place, copies: at(copies, place), syncs: at(syncs, place) }));
}

function nameOf({ name, overload, within }) {
  const own = name.replace("aten::", "") + (overload === "default" ? "" : `.${overload}`);
  return html`<span title=${within.length ? `within ${within.join(", ")}` : name}>${own}</span>`;
}

function marksOf({ copies, syncs, is_view }) {
  return html`${copies.map((copy) => html`<span class="mark copy">copies ${bytes(copy.bytes)}</span> `)}
    ${syncs.map((sync) => html`<span class="mark sync">sync: ${sync.kind.replaceAll("_", " ")}</span> `)}
    ${is_view && html`<span class="mark">view</span>`}`;
}
