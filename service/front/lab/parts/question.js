// A question to think about, and its answer from what the page has measured.

import { html } from "../vendor/htm-preact.js";
import { useId } from "./controls.js";

/** `answer`: content once it has been measured, else null, and then `missing` says what to measure for it. */
export function Question({ ask, answer, missing }) {
  const id = useId("question");
  return html`<section class="card question" aria-labelledby=${id}>
    <h2 id=${id}>A question</h2>
    <p>${ask}</p>
    <details>
      <summary>The answer, as measured on this page</summary>
      <p class=${answer ? "answer" : "absent"}>${answer ?? missing}</p>
    </details>
  </section>`;
}
