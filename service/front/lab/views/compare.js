// Compare: one input through all modes; and dispatch against kernel by batch, until they cross.

import { html } from "../vendor/htm-preact.js";
import { BatchCurve } from "../parts/batch-curve.js";
import { Choice, DataLink, Empty, Failed, Loading, QueryChoice, chosen, colourIn, readyModes } from "../parts/controls.js";
import { Interval, duration } from "../parts/numbers.js";
import { useRequest } from "../parts/request.js";
import { useWork } from "../parts/study.js";
import { TimeBar } from "../parts/timebar.js";

export const name = "compare";
export const title = "Compare";
export const sentence = "Run one input through several modes, and measure at which batch kernels take longer than dispatch.";

export function View({ lab }) {
  const request = useRequest(lab, { wanted: { tokens: 16 }, without: ["mode", "outputs"] });
  const modes = modesOf(lab);
  const rounds = chosen(lab, "rounds", [1, 8, 16], 8);
  const options = lab.modes.map(({ mode, state }) => ({ value: mode, disabled: state !== "ready" }));
  return html`<div class="columns">
      <form class="card" onSubmit=${(event) => event.preventDefault()}>
        ${request.fields}
        <${Choice} label="Modes" several options=${options} value=${modes}
          onChange=${(picked) => lab.changeQuery({ modes: picked.join(",") })} />
        <${QueryChoice} lab=${lab} name="rounds" label="Rounds" options=${ROUNDS} value=${rounds} />
      </form>
      <${Modes} lab=${lab} request=${request} modes=${modes} rounds=${rounds} />
    </div>
    <${BatchCurve} lab=${lab} request=${request} />`;
}

const BASELINE = "eager"; // of speed-ups and answers, as POST /v1/compare has it

const ROUNDS = [
  { value: 1, label: "1", note: "One run of each mode: no interval." },
  { value: 8, label: "8", note: "Each round runs every mode once, in a fresh order; speed-ups get their interval." },
  { value: 16, label: "16", note: "Twice the rounds: narrower intervals." },
];

/** The modes that the address names of those that are ready; all, if it names none. */
function modesOf({ modes, query }) {
  const ready = readyModes(modes);
  return query.modes === undefined ? ready : ready.filter((mode) => query.modes.split(",").includes(mode));
}

function Modes({ lab, request, modes, rounds }) {
  const [work, run, cancel] = useWork();
  const { values, isWhole } = request;
  const body = { ...lab.workload.bodyOf(values), repeats: rounds, modes };
  const compare = () =>
    run(async (signal) => ({ answer: await lab.post("/v1/compare", body, { signal }), values, rounds }));
  const nothing = !work.value && !work.running && !work.problem;
  const possible = !work.running && isWhole && modes.length > 0;
  return html`<section aria-label="Modes side by side">
    <p><button class="primary" type="button" onClick=${compare} disabled=${!possible}>Compare ${modes.length} ${modes.length === 1 ? "mode" : "modes"}</button></p>
    ${work.problem && html`<${Failed} problem=${work.problem} onRetry=${compare} />`}
    ${work.running && html`<${Loading} what=${`${rounds} rounds of ${modes.length} modes`} onCancel=${cancel} />`}
    ${nothing && html`<${Empty}>Nothing has been compared yet.<//>`}
    ${work.value && html`<${Results} ...${work.value} lab=${lab} />`}
    <${DataLink} data=${work.value?.answer} name="compare" />
  </section>`;
}

function Results({ answer, values, rounds, lab }) {
  const { results, batch_size } = answer;
  const { verdictOn, medians } = lab.workload;
  const scale = Math.max(...results.map(({ median_seconds }) => median_seconds));
  return html`<p>${verdictOn(results)} Batch ${batch_size}, ${rounds} ${rounds === 1 ? "round" : "rounds"}.</p>
    ${results.map((result) => html`<${ModeResult} ...${{ result, values, scale, rounds, lab }} key=${result.mode} />`)}
    <p class="note">${medians} The bars are on one scale. Medians of parts need not add up to the median of the whole.</p>`;
}

function ModeResult({ result, values, scale, rounds, lab }) {
  const { mode, effective, median_seconds, dispatch_seconds, kernel_seconds } = result;
  const agreement = lab.workload.agreementOf(result);
  const each = lab.workload.perStep(median_seconds, values);
  const { dispatch_low_seconds, dispatch_high_seconds, samples } = result;
  // On CUDA kernels run beside the host: stacked on its dispatch they would be counted twice.
  const beside = lab.engine?.device === "cuda";
  const note = beside ? "beside the host, not in the bar" : "";
  const kernel = { name: "kernel", seconds: kernel_seconds, note, beside };
  return html`<section class="card mode" style=${{ borderLeftColor: colourIn(lab.modes, mode) }} data-mode=${mode}>
    <h2>${mode}${effective !== mode && html` <span class="soft">(ran as ${effective})</span>`}</h2>
    <p class="row">
      <span class="figure" data-median=${median_seconds}>${duration(median_seconds)}</span>
      <${Gain} ...${result} rounds=${rounds} />
      ${mode !== BASELINE && html`<span class=${agreement.differs ? "bad" : "soft"}>${agreement.text}</span>`}
      ${each && html`<span class="soft">${each}</span>`}
    </p>
    <${TimeBar} label=${`${mode}: dispatch and kernel`} parts=${[{ name: "dispatch", seconds: dispatch_seconds }, kernel]}
      total=${median_seconds} scale=${scale} />
    ${samples !== null && html`<p class="soft">dispatch between ${duration(dispatch_low_seconds)} and${" "}
      ${duration(dispatch_high_seconds)}, by ${samples} samples of one more run</p>`}
  </section>`;
}

/** Over eager; where that did not run, over inference_mode. */
function Gain({ speedup, speedup_without_compiler, mode, rounds }) {
  if (mode === BASELINE) return html`<span class="soft">baseline</span>`;
  const gain = speedup ?? speedup_without_compiler;
  if (!gain) return html`<span class="soft">eager did not run</span>`;
  const { ratio, low, high, vs } = gain;
  return html`<span><${Interval} value=${ratio} low=${low} high=${high} unit="×" samples=${rounds} /> over ${vs}</span>`;
}
