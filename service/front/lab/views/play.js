// Play: one prompt through one mode, its text as it streams, and where its time went.

import { html, useState } from "../vendor/htm-preact.js";
import {
  Choice, DataLink, Empty, Failed, Loading, PROMPT, Slider, TextArea, batchSizes, colourIn, lengths, modeOptions,
  readyModes,
} from "../parts/controls.js";
import { duration, significant } from "../parts/numbers.js";
import { useWork } from "../parts/study.js";
import { TimeBar, partsOf, samplesOf } from "../parts/timebar.js";

export const name = "play";
export const title = "Play";
export const sentence = "Send a prompt through one mode, and see its text and where its time went.";

export function View({ lab }) {
  const [prompt, setPrompt] = useState(PROMPT);
  const [streamed, setStreamed] = useState(null);
  const [work, run, cancel] = useWork();
  const chosen = choicesOf(lab);
  const shown = streamed && (work.running || streamed.count > 0);
  const send = () => run((signal) => stream(lab, { ...chosen, prompt, signal, show: setStreamed }));
  return html`<div class="columns">
    <form class="card" onSubmit=${(event) => (event.preventDefault(), send())}>
      <${TextArea} label="Prompt" value=${prompt} onInput=${setPrompt} />
      <${Inputs} lab=${lab} ...${chosen} />
      <button class="primary" disabled=${work.running || prompt === "" || chosen.mode === undefined}>Generate</button>
    </form>
    <div>
      ${work.problem && html`<${Failed} problem=${work.problem} onRetry=${send} />`}
      ${work.running && html`<${Loading} what=${`${chosen.mode} generates`} onCancel=${cancel} />`}
      ${!shown && !work.running && !work.problem && html`<${Empty}>
        Nothing has run yet: choose a mode and press Generate.
      <//>`}
      ${shown && html`<${Completion} ...${streamed} lab=${lab} running=${work.running} />`}
      <${DataLink} data=${streamed?.result} name="play" />
    </div>
  </div>`;
}

/** What the address chooses, or the first that can run here. */
function choicesOf(lab) {
  const { query, engine } = lab;
  const oneOf = (values, given, otherwise) => (values.includes(given) ? given : otherwise);
  const ready = readyModes(lab.modes);
  return {
    mode: oneOf(ready, query.mode, ready[0]),
    batch: oneOf(batchSizes(engine), Number(query.batch), batchSizes(engine)[0]),
    tokens: oneOf(lengths(engine), Number(query.tokens), lengths(engine).findLast((length) => length <= 32)),
  };
}

function Inputs({ lab, mode, batch, tokens }) {
  const into = (name) => (value) => lab.changeQuery({ [name]: value });
  return html`<${Choice} label="Mode" options=${modeOptions(lab.modes)} value=${mode} onChange=${into("mode")} />
    <${Slider} label="Batch" values=${batchSizes(lab.engine)} value=${batch} onInput=${into("batch")}
      format=${(value) => (value === 1 ? "1 prompt" : `the prompt ${value} times`)} />
    <${Slider} label="New tokens" values=${lengths(lab.engine)} value=${tokens} onInput=${into("tokens")} />`;
}

/** Generate, and `show` after each event what is known so far. Returns the answer. */
async function stream(lab, { mode, batch, tokens, prompt, signal, show }) {
  const began = performance.now();
  const seconds = () => (performance.now() - began) / 1000;
  const progress = { text: "", count: 0, firstSeconds: null, lastSeconds: 0 };
  let known = { mode, prompt, batch, asked: tokens, ...progress, result: null };
  const on = (name, data) => {
    if (name === "token" && data.index === 0) {
      const now = seconds();
      const come = { text: known.text + data.text, count: known.count + 1 };
      known = { ...known, ...come, firstSeconds: known.firstSeconds ?? now, lastSeconds: now };
    } else if (name === "result") {
      known = { ...known, result: data, text: data.outputs[0].text };
    }
    show(known);
  };
  show(known);
  const body = { prompts: Array(batch).fill(prompt), max_new_tokens: tokens, stream: true };
  return lab.events(`/v1/modes/${encodeURIComponent(mode)}/generate`, body, { signal, on });
}

function Completion({ lab, mode, prompt, text, batch, result, running, ...progress }) {
  return html`<section class="card" aria-label="Completion">
      <pre class="completion" style=${{ borderColor: colourIn(lab.modes, mode) }} tabindex="0" role="region" aria-label="Text">
        <span class="soft">${prompt}</span>${text}
      </pre>
      ${batch > 1 && html`<p class="note">The first of ${batch} rows; the others have the same prompt.</p>`}
    </section>
    <section class="card" aria-label="Time">
      ${result ? html`<${Measured} ...${result} engine=${lab.engine} />` : html`<${SoFar} ...${progress} running=${running} />`}
    </section>`;
}

/** While tokens come the parts are not known: they are in the stream's last event. Until then this page's clock. */
function SoFar({ asked, count, firstSeconds, lastSeconds, running }) {
  const further = firstSeconds === null ? null : lastSeconds - firstSeconds;
  const parts = [
    { name: "to the first token", seconds: firstSeconds, colour: "var(--part-queue)" },
    { name: "further tokens", seconds: further, colour: "var(--neutral)" },
  ];
  // At the pace so far, so that the bar fills as the tokens come.
  const expected = count > 1 ? firstSeconds + (further / (count - 1)) * (asked - 1) : (firstSeconds ?? 1);
  const until = running ? "So far" : "Until it was stopped";
  return html`<h2>${until}: ${duration(lastSeconds)}, ${count} of ${asked} tokens</h2>
    <${TimeBar} label="Time so far, by this page's clock" parts=${parts} total=${lastSeconds} scale=${expected} />
    <p class="note">By this page's clock; the service's own numbers come with the last token.</p>`;
}

function Measured({ mode, device, model, timings, usage, batch_size, batch_bucket, engine }) {
  const rate = usage.completion_tokens / timings.total_seconds;
  const unsplit = timings.dispatch_seconds === null && engine?.no_samples;
  const padded = batch_bucket > batch_size ? `, run as a batch of ${batch_bucket}` : "";
  return html`<h2 class="figure" data-total=${timings.total_seconds}>${duration(timings.total_seconds)}</h2>
    <${TimeBar} label="Where the time went" parts=${partsOf(timings)} total=${timings.total_seconds} />
    <p>${duration(timings.time_to_first_token_seconds)} to the first token; ${usage.completion_tokens} tokens,${" "}
      ${significant(rate)} per second; ${usage.prompt_tokens} prompt tokens${padded}.</p>
    ${samplesOf(timings).map((text) => html`<p class="note" key=${text}>${text}</p>`)}
    ${unsplit && html`<p class="note">Dispatch and kernel cannot be told apart: ${unsplit}.</p>`}
    <p data-effective=${mode.effective}>${model} ran in <b>${mode.effective}</b> on ${device}, ${whyOf(mode)}.</p>`;
}

function whyOf({ requested, effective, reason }) {
  return `${effective === requested ? "as requested" : `not in ${requested}`}${reason ? `: ${reason}` : ""}`;
}
