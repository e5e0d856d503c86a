// The dispatch keys of a call: its key set, what torch does at each key, and the calls that follow from it.

import { html } from "../vendor/htm-preact.js";
import { Table } from "./table.js";

const COLUMNS = [
  { key: "key", title: "key", show: ({ key }) => html`<code class="key">${key}</code>` },
  { key: "kind", title: "what runs there", show: kindOf },
  { key: "source", title: "registered at" },
];

function kindOf({ kind, in_key_set }) {
  if (!in_key_set) return "not on this call: the thread's state takes the key away";
  return kind ?? "nothing: it falls through to the next key";
}

/** The key set of a call of an operator finding, highest priority first, and its entries into the dispatcher. */
export function Keys({ finding }) {
  const { calls, table, notes } = finding;
  const caption = `Dispatch keys of ${calls[0].operator}, highest priority first`;
  return html`<${Table} caption=${caption} columns=${COLUMNS} rows=${table} />
    <h3>Its entries into the dispatcher</h3>
    <ul class="entries">
      ${calls.map((call, place) => html`<${Entry} ...${call} key=${place} />`)}
    </ul>
    ${notes.map((note) => html`<p class="note" key=${note}>${note}</p>`)}`;
}

function Entry({ operator, depth, keys }) {
  const unknown = html`<span class="absent">keys not known: called from inside a backend's kernel</span>`;
  const visited = keys?.map(({ key, kind }) => html`<span class="key" title=${kind}>${key}</span> `);
  return html`<li data-depth=${depth}><code>${"↳ ".repeat(depth)}${operator}</code> ${visited ?? unknown}</li>`;
}
