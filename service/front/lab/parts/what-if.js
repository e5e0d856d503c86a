// What a step would be without its dispatch, and with what other modes left of it: bars on one scale.

import { html } from "../vendor/htm-preact.js";
import { speedupWith, stepOf, withoutDispatch } from "./budget.js";
import { duration, percent, significant } from "./numbers.js";
import { TimeBar } from "./timebar.js";

/** `budget` in seconds: {dispatch, kernel}. `finding`: of the study, for its device, null kernel and gains. */
export function WhatIf({ budget, finding }) {
  const { dispatch, kernel } = budget;
  const { device, gains, null_kernel_seconds: left } = finding;
  const scale = dispatch + kernel;
  const speedup = withoutDispatch(stepOf(dispatch, kernel, device), kernel, left);
  return html`<ul class="whatif">
    <${Bar} title="This step" ...${{ dispatch, kernel, scale }} speedup=${null} />
    <${Bar} title="Without its dispatch" dispatch=${left} ...${{ kernel, scale, speedup }} about=${aboutGraphs(device, left)} />
    ${gains.map((gain) => html`<${Gain} ...${{ gain, dispatch, kernel, scale, device }} key=${gain.mode} />`)}
  </ul>`;
}

function Gain({ gain, dispatch, kernel, scale, device }) {
  const { dispatch_ratio: ofDispatch, kernel_ratio: ofKernel, speedup } = gain;
  if (ofDispatch === null || ofKernel === null) {
    const why = "not known: a part of the budget's own step was measured as nothing, so there is no ratio to it";
    return html`<li><h2>${titleOf(gain)}</h2><p class="absent">${why}</p></li>`;
  }
  const about =
    `Measured here, this mode left ${range(ofDispatch)} of dispatch and ${range(ofKernel)} of kernels, and was` +
    ` ${significant(speedup.value)} times as fast (${significant(speedup.low)}–${significant(speedup.high)}).`;
  const then = speedupWith(ofDispatch.value, ofKernel.value, dispatch, kernel, device);
  return html`<${Bar} title=${titleOf(gain)} dispatch=${dispatch * ofDispatch.value} kernel=${kernel * ofKernel.value}
    scale=${scale} speedup=${then} about=${about} />`;
}

function Bar({ title, dispatch, kernel, scale, speedup, about }) {
  const parts = [{ name: "dispatch", seconds: dispatch }, { name: "kernel", seconds: kernel }];
  return html`<li>
    <h2>${title}${speedup !== null && html`<${Times} speedup=${speedup} />`}</h2>
    <${TimeBar} parts=${parts} total=${dispatch + kernel} scale=${scale} label=${title} />
    ${about && html`<p class="note">${about}</p>`}
  </li>`;
}

function Times({ speedup }) {
  return html` <b class="figure" data-speedup=${speedup}>${significant(speedup)}×</b> <span class="soft">as fast</span>`;
}

const titleOf = ({ mode, effective }) => `With ${mode}${effective === mode ? "" : ` (${effective})`}`;

const end = (share) => (share === null ? "?" : percent(share));
const range = ({ value, low, high }) => `${percent(value)} (${end(low)} to ${end(high)})`;

function aboutGraphs(device, left) {
  const issued = `All the host still issues is one empty operator (${duration(left)}).`;
  if (device !== "cpu") return `${issued} That is what a replayed graph buys, with the same kernels.`;
  return `${issued} A CPU has no graphs that do it.`;
}
