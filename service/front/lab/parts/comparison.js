// Two sweeps cell by cell, from the document of `launchbound compare`.

import { html } from "../vendor/htm-preact.js";
import { Interval } from "./interval.js";
import { duration } from "./numbers.js";
import { Table } from "./table.js";

/** The fields are those of `launchbound compare --json`. */
export function Comparison({ headline, cells, unlike, differs, confidence, unit }) {
  const facts = [...unlike, ...differs].map(({ fact, values }) => `${fact}: ${values.join(" → ")}`);
  const caption = `Latency after over before, by cell; intervals of ${(100 * confidence).toPrecision(3)} % over ${unit}`;
  return html`<div data-comparison>
    <p class="figure">${headline}</p>
    ${unlike.length > 0 && html`<p class="warn">These are unlike, and were compared all the same.</p>`}
    ${facts.length > 0 && html`<p class="soft">${facts.join("; ")}.</p>`}
    <${Table} caption=${caption} columns=${COLUMNS} rows=${cells} identify=${({ cell }) => cell} />
  </div>`;
}

const COLUMNS = [
  { key: "cell", title: "cell" },
  { key: "before", title: "before", numeric: true, show: (row) => duration(row.before_seconds) },
  { key: "after", title: "after", numeric: true, show: (row) => duration(row.after_seconds) },
  { key: "ratio", title: "after / before", show: ({ ratio }) => html`<${Interval} ...${ratio} unit="×" />` },
  { key: "word", title: "verdict", show: ({ word }) => html`<span class=${LOOKS[word] ?? "soft"}>${word}</span>` },
];

const LOOKS = { faster: "good", slower: "bad" };
