// Play: one prompt through one mode, its text as it streams.

import { html } from "../vendor/htm-preact.js";
import { Empty } from "../parts/states.js";

export const name = "play";
export const title = "Play";
export const sentence = "Send a prompt through one mode and see the text, and where its time went, as the tokens come.";

export function View({ lab }) {
  return html`<${Empty}>${lab.modes.length} modes are served here.<//>`;
}
