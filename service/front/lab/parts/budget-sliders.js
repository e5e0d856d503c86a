// The three quantities of a budget as sliders: each moves by quarters of a doubling from its measured value.

import { html } from "../vendor/htm-preact.js";
import { Slider } from "./controls.js";
import { duration } from "./numbers.js";

const MOST = 20; // quarters of a doubling, up and down

/** How far a slider stands from the measured value, by the address. */
function quarters(lab, slider) {
  const found = Number.parseInt(lab.query[slider] ?? "0", 10);
  return Number.isNaN(found) ? 0 : Math.min(MOST, Math.max(-MOST, found));
}

const scaled = (value, steps) => value * 2 ** (steps / 4);
const operatorsAt = (value, steps) => (steps === 0 ? value : Math.max(1, Math.round(scaled(value, steps))));

/** The three quantities of a finding's `budget` where the sliders stand; `each` and `kernel` in seconds. */
export function quantities(lab, budget) {
  return {
    operators: operatorsAt(budget.ops_per_step.value, quarters(lab, "operators")),
    each: scaled(budget.microseconds_per_op.value, quarters(lab, "each")) / 1e6,
    kernel: scaled(budget.kernel_microseconds.value, quarters(lab, "kernel")) / 1e6,
  };
}

/** Whether every slider stands at its measured value. */
export const asMeasured = (lab) => ["operators", "each", "kernel"].every((slider) => quarters(lab, slider) === 0);

export function Sliders({ lab, budget }) {
  const micros = ({ value }) => (steps) => duration(scaled(value, steps) / 1e6);
  const { ops_per_step: operators, microseconds_per_op: each, kernel_microseconds: kernel } = budget;
  const rows = [
    ["operators", "Operators per step, below autograd", operators, (steps) => String(operatorsAt(operators.value, steps))],
    ["each", "Dispatch per operator", each, micros(each)],
    ["kernel", "Kernels per step", kernel, micros(kernel)],
  ];
  const back = () => lab.changeQuery({ operators: null, each: null, kernel: null });
  return html`<hr />
    ${rows.map(([key, ...row]) => html`<${One} lab=${lab} name=${key} row=${row} key=${key} />`)}
    <button type="button" onClick=${back}>Back to this machine's values</button>`;
}

function One({ lab, name, row: [label, { value, source }, format] }) {
  const at = quarters(lab, name);
  const moved = (steps) => lab.changeQuery({ [name]: steps || null });
  const note = value === 0 ? "measured as nothing: other work disturbed it; measure again" : `${source}: ${format(0)} here`;
  return html`<${Slider} label=${label} min=${-MOST} max=${MOST} value=${at} format=${format} disabled=${value === 0}
      onInput=${moved} />
    <p class="note">${note}</p>`;
}
