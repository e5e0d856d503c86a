// What a view shows in place of data: nothing yet, work under way, or an error with its remedy.

import { html } from "../vendor/htm-preact.js";

/** Nothing to show yet; the children say what to do. */
export const Empty = ({ children }) => html`<p class="state empty">${children}</p>`;

/** Work under way: `what` in words; `onCancel` ends it. */
export function Loading({ what, onCancel }) {
  return html`<p class="state loading" role="status">
    <span class="pulse" aria-hidden="true"></span>${what}
    ${onCancel && html`<button type="button" onClick=${onCancel}>Cancel</button>`}
  </p>`;
}

/** An error: the message of the service names the remedy. `onRetry` tries again. */
export function Failed({ problem, onRetry }) {
  const inProgress = problem.type === "run_in_progress";
  return html`<div class="state failed" role="alert" data-type=${problem.type}>
    <p><b>${inProgress ? "A sweep is measuring: the lab waits." : "That did not work."}</b> ${problem.message}</p>
    ${problem.retryAfterSeconds != null && html`<p class="soft">Try again in ${problem.retryAfterSeconds} s.</p>`}
    ${onRetry && html`<button type="button" onClick=${onRetry}>Try again</button>`}
  </div>`;
}
