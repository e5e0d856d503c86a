// The data behind a view as JSON: opened in the page, or saved as a file.

import { html, useState } from "../vendor/htm-preact.js";

/** `data`: any JSON value; nothing is shown for null. `name`: of the file, without its ending. */
export function DataLink({ data, name }) {
  const [open, setOpen] = useState(false);
  if (data === null || data === undefined) return null;
  const text = () => JSON.stringify(data, null, 2);
  return html`<div class="data">
    <button type="button" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>
      ${open ? "Hide the data" : "Show the data (JSON)"}
    </button>
    <button type="button" onClick=${() => save(text(), `${name}.json`)}>Save as ${name}.json</button>
    ${open && html`<pre tabindex="0" role="region" aria-label="The view's data">${text()}</pre>`}
  </div>`;
}

/** Save `text` as a file of the browser's downloads. */
export function save(text, name, type = "application/json") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  // The download has begun by then; the browser keeps what it still reads.
  setTimeout(() => URL.revokeObjectURL(link.href), 0);
}
