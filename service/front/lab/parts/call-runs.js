// One operator's call under the switches of torch's state: each setting is a measurement of its own, and is kept.

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { QueryChoice, chosen } from "./choices.js";
import { Switch } from "./controls.js";
import { percent } from "./numbers.js";

/** The calls that the study `operator` knows. */
export const CALLS = [
  "torch.add(x, y)",
  "torch.mul(x, y)",
  "torch.exp(x)",
  "torch.relu(x)",
  "torch.sum(x)",
  "torch.softmax(x, -1)",
  "torch.transpose(x, 0, 1)",
  "torch.matmul(x, weight)",
  "F.layer_norm(x, shape, weight, bias)",
];

const GRADS = [
  { value: "enabled", label: "on" },
  { value: "no_grad", label: "no_grad" },
  { value: "inference_mode", label: "inference mode" },
];
const SIZES = [8, 64, 256, 512].map((size) => ({ value: size, label: `${size} × ${size}` }));
const valuesOf = (options) => options.map(({ value }) => value);

/** The call and the state of torch that the address chooses: the arguments of the study. */
export function switchesOf(lab) {
  return {
    expression: chosen(lab, "call", CALLS, CALLS[0]),
    size: chosen(lab, "size", valuesOf(SIZES), 64),
    grad: chosen(lab, "grad", valuesOf(GRADS), "enabled"),
    autocast: lab.query.autocast === "on",
    requires_grad: lab.query.requires !== "off",
  };
}

const switchesIn = ({ expression, size, grad, autocast, requires_grad }) => {
  return { expression, size, grad, autocast, requires_grad };
};

const queryOf = ({ expression, size, grad, autocast, requires_grad }) => {
  return { call: expression, size, grad, autocast: autocast ? "on" : null, requires: requires_grad ? null : "off" };
};

/** Whether `finding` was made with these switches. */
export const sameRun = (finding, switches) => Object.entries(switches).every(([key, value]) => finding[key] === value);

/** The findings of this page, the newest of equal ones. The switches follow a finding that a link has opened. */
export function useRuns(lab, study) {
  const [runs, setRuns] = useState([]);
  useEffect(() => {
    if (study.kept === null) return;
    const { finding } = study.kept;
    setRuns((before) => [...before.filter((run) => !sameRun(run, switchesIn(finding))), finding]);
    lab.changeQuery(queryOf(finding));
  }, [study.kept]);
  return runs;
}

export function Switches({ lab, switches }) {
  const { expression, size, grad, autocast, requires_grad } = switches;
  return html`<section class="card" aria-label="Which call">
    <${QueryChoice} lab=${lab} name="call" label="Call" options=${CALLS} value=${expression} />
    <${QueryChoice} lab=${lab} name="size" label="On float32 tensors of" options=${SIZES} value=${size} />
    <${QueryChoice} lab=${lab} name="grad" label="Grad mode" options=${GRADS} value=${grad} />
    <${Switch} label="Autocast to bfloat16" checked=${autocast}
      onChange=${(on) => lab.changeQuery({ autocast: on ? "on" : null })} />
    <${Switch} label="The tensors require grad" checked=${requires_grad}
      onChange=${(on) => lab.changeQuery({ requires: on ? null : "off" })} />
  </section>`;
}

/**
 * What autograd takes of this call: `{slice, share, taped, untaped}`, the last two being its findings with grad mode on
 * and in inference mode; null where one of them has not been measured.
 */
export function autogradShare(runs, { expression, size, autocast }) {
  const fixed = { expression, size, autocast, requires_grad: true };
  const [taped, untaped] = ["enabled", "inference_mode"].map((grad) => runs.find((run) => sameRun(run, { ...fixed, grad })));
  if (!taped || !untaped) return null;
  const slice = taped.slices.find((each) => each.name === "autograd").microseconds;
  return { slice, share: percent(slice.value / taped.whole_microseconds.value), taped, untaped };
}
