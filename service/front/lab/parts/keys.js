// The dispatch keys of a call: its key set, what torch does at each key, and the calls that follow from it.

import { html } from "../vendor/htm-preact.js";
import { Table } from "./table.js";

const COLUMNS = [
  { key: "key", title: "key", show: ({ key }) => html`<code class="key">${key}</code>` },
  { key: "kind", title: "what runs there", show: ({ kind, in_key_set }) => (in_key_set ? (kind ?? "nothing: it falls through to the next key") : "not on this call: the thread's state takes the key away") },
  { key: "source", title: "registered at" },
];

/** The key set of a call of an operator finding, highest priority first, and its entries into the dispatcher. */
export function Keys({ finding }) {
  return html`<${Table} caption=${`Dispatch keys of ${finding.calls[0].operator}, highest priority first`} columns=${COLUMNS} rows=${finding.table} />
    <h3>Its entries into the dispatcher</h3>
    <ul class="entries">
      ${finding.calls.map((call, place) => html`<li key=${place} data-depth=${call.depth}><code>${"↳ ".repeat(call.depth)}${call.operator}</code> ${visited(call)}</li>`)}
    </ul>
    ${finding.notes.map((note) => html`<p class="note" key=${note}>${note}</p>`)}`;
}

function visited({ keys }) {
  if (keys === null) return html`<span class="absent">keys not known: called from inside a backend's kernel</span>`;
  return keys.map(({ key, kind }) => html`<span class="key" key=${key} title=${kind}>${key}</span> `);
}
