// What a step would be without its dispatch, and with what other modes left of it: bars on one scale.

import { html } from "../vendor/htm-preact.js";
import { speedupWith, stepOf, withoutDispatch } from "./budget.js";
import { duration, percent, significant } from "./numbers.js";
import { TimeBar } from "./timebar.js";

/** `budget` in seconds: {dispatch, kernel}. `finding`: of the study, for its device, null kernel and gains. */
export function WhatIf({ budget, finding }) {
  const { dispatch, kernel } = budget;
  const scale = dispatch + kernel;
  return html`<ul class="whatif">
    <${Row} title="This step" ...${{ dispatch, kernel, scale }} speedup=${null} />
    <${Row} title="Without its dispatch" dispatch=${finding.null_kernel_seconds} kernel=${kernel} scale=${scale}
      speedup=${withoutDispatch(stepOf(dispatch, kernel, finding.device), kernel, finding.null_kernel_seconds)} about=${aboutGraphs(finding)} />
    ${finding.gains.map((gain) => html`<${Gain} gain=${gain} ...${{ dispatch, kernel, scale }} device=${finding.device} key=${gain.mode} />`)}
  </ul>`;
}

function Gain({ gain, dispatch, kernel, scale, device }) {
  const [ofDispatch, ofKernel] = [gain.dispatch_ratio, gain.kernel_ratio];
  if (ofDispatch === null || ofKernel === null) return html`<li><h2>${titleOf(gain)}</h2><p class="absent">not known: a part of the budget's own step was measured as nothing, so there is no ratio to it</p></li>`;
  const about = `Measured here, this mode left ${range(ofDispatch)} of dispatch and ${range(ofKernel)} of kernels, and was ${significant(gain.speedup.value)} times as fast (${significant(gain.speedup.low)}–${significant(gain.speedup.high)}).`;
  return html`<${Row} title=${titleOf(gain)} dispatch=${dispatch * ofDispatch.value} kernel=${kernel * ofKernel.value} scale=${scale}
    speedup=${speedupWith(ofDispatch.value, ofKernel.value, dispatch, kernel, device)} about=${about} mode=${gain.mode} />`;
}

function Row({ title, dispatch, kernel, scale, speedup, about, mode }) {
  const parts = [{ name: "dispatch", seconds: dispatch }, { name: "kernel", seconds: kernel }];
  return html`<li data-mode=${mode}>
    <h2>${title}${speedup !== null && html` <b class="figure" data-speedup=${speedup}>${significant(speedup)}×</b> <span class="soft">as fast</span>`}</h2>
    <${TimeBar} parts=${parts} total=${dispatch + kernel} scale=${scale} label=${title} />
    ${about && html`<p class="note">${about}</p>`}
  </li>`;
}

const titleOf = (gain) => `With ${gain.mode}${gain.effective === gain.mode ? "" : ` (${gain.effective})`}`;
const range = ({ value, low, high }) => `${percent(value)} (${low === null ? "?" : percent(low)} to ${high === null ? "?" : percent(high)})`;

function aboutGraphs({ device, null_kernel_seconds }) {
  const left = `All the host still issues is one empty operator (${duration(null_kernel_seconds)}).`;
  if (device !== "cpu") return `${left} That is what a replayed graph buys, with the same kernels.`;
  return `${left} A CPU has no graphs that do it. Dispatch is a lower estimate here and kernel an upper one, so this is the least that would be gained, with the same kernels.`;
}
