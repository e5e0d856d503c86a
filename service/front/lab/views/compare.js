// Compare: one input through all modes; and dispatch against kernel by batch, until they cross.

import { html, useState } from "../vendor/htm-preact.js";
import { BatchCurve } from "../parts/batch-curve.js";
import {
  Choice, DataLink, Empty, Failed, Loading, PROMPT, Slider, TextArea, batchSizes, colourIn, lengths, readyModes,
} from "../parts/controls.js";
import { Interval, duration } from "../parts/numbers.js";
import { useWork } from "../parts/study.js";
import { TimeBar } from "../parts/timebar.js";

export const name = "compare";
export const title = "Compare";
export const sentence =
  "Run one input through every mode that is ready, and measure at which batch kernels take longer than dispatch.";

export function View({ lab }) {
  const [prompt, setPrompt] = useState(PROMPT);
  const chosen = choicesOf(lab);
  const into = (name) => (value) => lab.changeQuery({ [name]: value });
  return html`<div class="columns">
      <form class="card" onSubmit=${(event) => event.preventDefault()}>
        <${TextArea} label="Prompt" value=${prompt} onInput=${setPrompt} />
        <${Slider} label="Batch" values=${batchSizes(lab.engine)} value=${chosen.batch} onInput=${into("batch")} />
        <${Slider} label="New tokens" values=${lengths(lab.engine)} value=${chosen.tokens} onInput=${into("tokens")} />
        <${Choice} label="Rounds" options=${ROUNDS} value=${chosen.rounds} onChange=${into("rounds")} />
      </form>
      <${Modes} lab=${lab} prompt=${prompt} ...${chosen} />
    </div>
    <${BatchCurve} lab=${lab} prompt=${prompt} ...${chosen} />`;
}

const BASELINE = "eager"; // of speed-ups and texts, as POST /v1/compare has it

const ROUNDS = [
  { value: 1, label: "1", note: "One run of each mode: no interval." },
  { value: 8, label: "8", note: "Each round runs every mode once, in a fresh order; speed-ups get their interval." },
  { value: 16, label: "16", note: "Twice the rounds: narrower intervals." },
];

function choicesOf({ query, engine }) {
  const oneOf = (values, given, otherwise) => (values.includes(Number(given)) ? Number(given) : otherwise);
  return {
    batch: oneOf(batchSizes(engine), query.batch, batchSizes(engine)[0]),
    tokens: oneOf(lengths(engine), query.tokens, lengths(engine).findLast((length) => length <= 16)),
    rounds: oneOf([1, 8, 16], query.rounds, 8),
  };
}

function Modes({ lab, prompt, batch, tokens, rounds }) {
  const [work, run, cancel] = useWork();
  const modes = readyModes(lab.modes);
  const body = { prompts: Array(batch).fill(prompt), max_new_tokens: tokens, repeats: rounds, modes };
  const compare = () => run(async (signal) => ({ ...(await lab.post("/v1/compare", body, { signal })), rounds }));
  const nothing = !work.value && !work.running && !work.problem;
  const possible = !work.running && prompt !== "" && modes.length > 0;
  return html`<section aria-label="Modes side by side">
    <p><button class="primary" type="button" onClick=${compare} disabled=${!possible}>Compare ${modes.length} modes</button></p>
    ${work.problem && html`<${Failed} problem=${work.problem} onRetry=${compare} />`}
    ${work.running && html`<${Loading} what=${`${rounds} rounds of ${modes.length} modes`} onCancel=${cancel} />`}
    ${nothing && html`<${Empty}>Nothing has been compared yet.<//>`}
    ${work.value && html`<${Results} ...${work.value} lab=${lab} />`}
    <${DataLink} data=${work.value} name="compare" />
  </section>`;
}

function Results({ results, rounds, batch_size, lab }) {
  const scale = Math.max(...results.map(({ median_seconds }) => median_seconds));
  return html`<p>${verdictOnTexts(results)} Batch ${batch_size}, ${rounds} ${rounds === 1 ? "round" : "rounds"}.</p>
    ${results.map((result) => html`<${ModeResult} ...${{ result, scale, rounds, lab }} key=${result.mode} />`)}
    <p class="note">Medians of the rounds, the wait behind other requests left out. The bars are on one scale; what
      neither dispatch nor kernel fills of a bar is the rest of the request. Medians of parts need not add up to the
      median of the whole.</p>`;
}

function verdictOnTexts(results) {
  const compared = results.filter(({ text_equal }) => text_equal !== null);
  if (compared.length === 0) return "eager did not run, so no text was compared.";
  const different = compared.filter(({ text_equal }) => !text_equal).map(({ mode }) => mode);
  return different.length === 0 ? "All modes wrote the same text." : `Not the text of eager: ${different.join(", ")}.`;
}

function ModeResult({ result, scale, rounds, lab }) {
  const { mode, effective, median_seconds, dispatch_seconds, kernel_seconds, speedup, text_equal } = result;
  const { dispatch_low_seconds, dispatch_high_seconds, samples } = result;
  // On CUDA kernels run beside the host: stacked on its dispatch they would be counted twice.
  const beside = lab.engine?.device === "cuda";
  const note = beside ? "beside the host, not in the bar" : "";
  const kernel = { name: "kernel", seconds: kernel_seconds, note, beside };
  return html`<section class="card mode" style=${{ borderLeftColor: colourIn(lab.modes, mode) }} data-mode=${mode}>
    <h2>${mode}${effective !== mode && html` <span class="soft">(ran as ${effective})</span>`}</h2>
    <p class="row">
      <span class="figure" data-median=${median_seconds}>${duration(median_seconds)}</span>
      <${Gain} speedup=${speedup} mode=${mode} rounds=${rounds} />
      ${mode !== BASELINE && html`<span class=${text_equal === false ? "bad" : "soft"}>${TEXTS.get(text_equal)}</span>`}
    </p>
    <${TimeBar} label=${`${mode}: dispatch and kernel`} parts=${[{ name: "dispatch", seconds: dispatch_seconds }, kernel]}
      total=${median_seconds} scale=${scale} />
    ${samples !== null && html`<p class="soft">dispatch between ${duration(dispatch_low_seconds)} and
      ${duration(dispatch_high_seconds)}, by ${samples} samples of one more run</p>`}
  </section>`;
}

function Gain({ speedup, mode, rounds }) {
  if (speedup === null) {
    return html`<span class="soft">${mode === BASELINE ? "baseline" : "eager did not run"}</span>`;
  }
  const { ratio, low, high, vs } = speedup;
  return html`<span><${Interval} value=${ratio} low=${low} high=${high} unit="×" samples=${rounds} /> over ${vs}</span>`;
}

const TEXTS = new Map([[true, "same text as eager"], [false, "another text than eager"], [null, "text not compared"]]);
