// What the views of studies let one choose: which step of which mode. The choice stands in the address.

import { html } from "../vendor/htm-preact.js";
import { Choice } from "./controls.js";

/** The query's value under `name` if it is one of `values`, else `otherwise`. */
export function chosen(lab, name, values, otherwise) {
  return values.map(String).includes(lab.query[name]) ? values.find((value) => String(value) === lab.query[name]) : otherwise;
}

/** A choice whose value stands in the address under `name`. */
export function QueryChoice({ lab, name, label, options, value, disabled }) {
  return html`<${Choice} label=${label} options=${options} value=${value} disabled=${disabled} onChange=${(next) => lab.changeQuery({ [name]: next })} />`;
}

/** Modes as options: one that is not ready cannot be chosen. `leave(mode)` leaves one out. */
export function modeOptions(lab, leave = () => false) {
  return lab.modes
    .filter(({ mode }) => !leave(mode))
    .map(({ mode, state, effective }) => ({
      value: mode,
      disabled: state !== "ready",
      note: effective && effective !== mode ? `Runs as ${effective} here.` : null,
    }));
}

/** The modes that are ready, in the ladder's order. */
export const readyModes = (lab) => lab.modes.filter(({ state }) => state === "ready").map(({ mode }) => mode);

/** Batch sizes that this instance serves. */
export const batchSizes = (lab) => lab.engine?.batch_buckets ?? [1];

export const PHASES = [
  { value: "decode", label: "decode", note: "One token per sequence." },
  { value: "prefill", label: "prefill", note: "One chunk of each prompt." },
];
