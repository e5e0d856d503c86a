// A table that scrolls within itself, never the page.

import { html } from "../vendor/htm-preact.js";

/**
 * `columns`: [{key, title, numeric, show(row)}]; without `show` the row's `key` is written. `rows`: objects; null is a
 * dash. `caption` names it to screen readers; `identify(row)` tells rows apart, by their place where left out.
 */
export function Table({ caption, columns, rows, identify = (_, place) => place }) {
  return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0">
    <table>
      <caption>${caption}</caption>
      <thead>
        <tr>${columns.map((column) => html`<${Heading} ...${column} />`)}</tr>
      </thead>
      <tbody>
        ${rows.map((row, place) => html`<${Row} columns=${columns} row=${row} key=${identify(row, place)} />`)}
      </tbody>
    </table>
  </div>`;
}

function Heading({ title, numeric }) {
  return html`<th scope="col" class=${numeric ? "numeric" : ""}>${title}</th>`;
}

function Row({ columns, row }) {
  return html`<tr>${columns.map((column) => html`<${Cell} column=${column} row=${row} key=${column.key} />`)}</tr>`;
}

function Cell({ column, row }) {
  const shown = column.show ? column.show(row) : row[column.key];
  return html`<td class=${column.numeric ? "numeric" : ""} data-column=${column.key}>${shown ?? "–"}</td>`;
}
