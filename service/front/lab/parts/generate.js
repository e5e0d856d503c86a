// Requests of a language model: what their form makes, and what is shown of their answers.

import { html } from "../vendor/htm-preact.js";
import { colourIn } from "./controls.js";
import { duration, significant } from "./numbers.js";
import { Measured, TimeBar } from "./timebar.js";

const bodyOf = ({ prompt, batch, tokens }) => ({ prompts: Array(batch).fill(prompt), max_new_tokens: tokens });

/** As KINDS in lab.js describes it. */
export const generate = {
  fields: ["prompt", "mode", "batch", "tokens"],
  verb: "Generate",
  doing: "generates",
  bodyOf,
  stepsOf: (values) => ({ ...bodyOf(values), ignore_eos: true }),
  send: stream,
  Answer: Completion,
  rate: { title: "tokens per second", metric: "tokens_total", labels: { kind: "generated" } },
  verdictOn,
  agreementOf: ({ text_equal }) => ({ text: TEXTS.get(text_equal), differs: text_equal === false }),
  perStep: () => null,
  medians: "Medians without the wait behind others; what neither part fills of a bar is the rest of the request.",
};

const TEXTS = new Map([[true, "same text as eager"], [false, "another text than eager"], [null, "text not compared"]]);

function verdictOn(results) {
  const compared = results.filter(({ text_equal }) => text_equal !== null);
  if (compared.length === 0) return "eager did not run, so no text was compared.";
  const different = compared.filter(({ text_equal }) => !text_equal).map(({ mode }) => mode);
  return different.length === 0 ? "All modes wrote the same text." : `Not the text of eager: ${different.join(", ")}.`;
}

/** Generate, and `show` after each event what is known so far. Returns the answer. */
async function stream({ lab, values, signal, show }) {
  const began = performance.now();
  const seconds = () => (performance.now() - began) / 1000;
  let known = { values, text: "", count: 0, firstSeconds: null, lastSeconds: 0, result: null };
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
  const body = { ...bodyOf(values), stream: true };
  return lab.events(`/v1/modes/${encodeURIComponent(values.mode)}/generate`, body, { signal, on });
}

function Completion({ lab, values, text, result, running, ...progress }) {
  const { mode, prompt, batch, tokens } = values;
  return html`<section class="card" aria-label="Completion">
      <pre class="completion" style=${{ borderColor: colourIn(lab.modes, mode) }} tabindex="0" role="region" aria-label="Text">
        <span class="soft">${prompt}</span>${text}
      </pre>
      ${batch > 1 && html`<p class="note">The first of ${batch} rows; the others have the same prompt.</p>`}
    </section>
    <section class="card" aria-label="Time">
      ${result
        ? html`<${Measured} lab=${lab} answer=${result}><p>${tokensText(result)}</p><//>`
        : html`<${SoFar} ...${progress} asked=${tokens} running=${running} />`}
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

function tokensText({ timings, usage, batch_size, batch_bucket }) {
  const rate = usage.completion_tokens / timings.total_seconds;
  const padded = batch_bucket > batch_size ? `, run as a batch of ${batch_bucket}` : "";
  return (
    `${duration(timings.time_to_first_token_seconds)} to the first token; ${usage.completion_tokens} tokens,` +
    ` ${significant(rate)} per second; ${usage.prompt_tokens} prompt tokens${padded}.`
  );
}
