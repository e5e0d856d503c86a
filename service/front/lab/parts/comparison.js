// Two sweeps cell by cell, from the document of `launchbound compare`.

import { html } from "../vendor/htm-preact.js";
import { Interval } from "./interval.js";
import { duration } from "./numbers.js";
import { Table } from "./table.js";

/** The fields are those of `launchbound compare --json`. */
export function Comparison({ headline, cells, unlike, differs, confidence, unit }) {
  const facts = [...unlike, ...differs].map(({ fact, values }) => `${fact}: ${values.join(" → ")}`);
  return html`<div data-comparison>
    <p class="figure">${headline}</p>
    ${facts.length > 0 && html`<p class=${unlike.length > 0 ? "warn" : "soft"}>${unlike.length > 0 ? "Unlike, and compared all the same. " : ""}${facts.join("; ")}.</p>`}
    <${Table} caption=${`Latency after over before, by cell; intervals of ${(100 * confidence).toPrecision(3)} % over ${unit}`} columns=${COLUMNS} rows=${cells} identify=${({ cell }) => cell} />
  </div>`;
}

const COLUMNS = [
  { key: "cell", title: "cell" },
  { key: "before", title: "before", numeric: true, show: (row) => duration(row.before_seconds) },
  { key: "after", title: "after", numeric: true, show: (row) => duration(row.after_seconds) },
  { key: "ratio", title: "after / before", show: ({ ratio }) => html`<${Interval} value=${ratio.value} low=${ratio.low} high=${ratio.high} unit="×" samples=${ratio.samples} />` },
  { key: "word", title: "verdict", show: ({ word }) => html`<span class=${{ faster: "good", slower: "bad" }[word] ?? "soft"}>${word}</span>` },
];
