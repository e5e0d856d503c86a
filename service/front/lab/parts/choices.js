// What the views of studies let one choose: which step of which mode. The choice stands in the address.

import { html } from "../vendor/htm-preact.js";
import { Choice } from "./controls.js";

/** The query's value under `name` if it is one of `values`, else `otherwise`. */
export function chosen(lab, name, values, otherwise) {
  return values.find((value) => String(value) === lab.query[name]) ?? otherwise;
}

/** A choice whose value stands in the address under `name`. */
export function QueryChoice({ lab, name, label, options, value, disabled }) {
  const change = (next) => lab.changeQuery({ [name]: next });
  return html`<${Choice} label=${label} options=${options} value=${value} disabled=${disabled} onChange=${change} />`;
}

export const PHASES = [
  { value: "decode", label: "decode", note: "One token per sequence." },
  { value: "prefill", label: "prefill", note: "One chunk of each prompt." },
];
