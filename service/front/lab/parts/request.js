// The form of a request: its fields, by what is served; their choices stand in the address.

import { html, useState } from "../vendor/htm-preact.js";
import { Choice, NumberInput, Slider, Switch, TextArea, batchSizes, chosen, modeOptions, readyModes } from "./controls.js";

/** Python that the shipped model goes on with. */
const PROMPT = "def mean(values):\n";

const LENGTHS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const CALLS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
const CALLS_SECONDS = 0.05; // of a request's calls where nothing is chosen: a short call alone is timed with cold caches

/** Lengths that leave half of the context to the prompt. */
const lengths = (engine) => LENGTHS.filter((length) => length <= (engine?.context ?? 64) / 2);

/** So many calls that they take CALLS_SECONDS by the steps that the service has timed; 10 where it has timed none. */
function fittingCalls(lab, batch) {
  const splits = lab.modes.flatMap((mode) => mode.splits);
  const known = splits.find((split) => split.batch === batch);
  if (known === undefined) return 10;
  return CALLS.findLast((calls) => calls * known.step_seconds <= CALLS_SECONDS) ?? 1;
}

const inputSizes = (lab) => lab.engine?.input_sizes ?? [];

/**
 * By name: `read({lab, values, wanted})` is the choice, with those of the fields before it, `draw({lab, value, values,
 * change})` its control. `isHere(lab)`: false where there is nothing to choose from; it has no value then.
 */
const FIELDS = {
  prompt: {
    read: ({ prompt }) => prompt,
    draw: ({ value, setPrompt }) => html`<${TextArea} label="Prompt" value=${value} onInput=${setPrompt} />`,
  },
  mode: {
    read: ({ lab }) => chosen(lab, "mode", readyModes(lab.modes), readyModes(lab.modes)[0]),
    draw: ({ lab, value, change }) =>
      html`<${Choice} label="Mode" options=${modeOptions(lab.modes)} value=${value} onChange=${change} />`,
  },
  batch: {
    read: ({ lab }) => chosen(lab, "batch", batchSizes(lab.engine), batchSizes(lab.engine)[0]),
    draw: ({ lab, value, change }) =>
      html`<${Slider} label="Batch" values=${batchSizes(lab.engine)} value=${value} onInput=${change} />`,
  },
  tokens: {
    read: ({ lab, wanted }) => {
      const values = lengths(lab.engine);
      return chosen(lab, "tokens", values, values.findLast((length) => length <= wanted.tokens));
    },
    draw: ({ lab, value, change }) =>
      html`<${Slider} label="New tokens" values=${lengths(lab.engine)} value=${value} onInput=${change} />`,
  },
  size: {
    isHere: (lab) => inputSizes(lab).length > 0,
    read: ({ lab }) => chosen(lab, "size", inputSizes(lab), inputSizes(lab)[0]),
    draw: ({ lab, value, change }) =>
      html`<${Choice} label="Size" options=${inputSizes(lab)} value=${value} onChange=${change} />`,
  },
  seed: {
    read: ({ lab }) => wholeNumber(lab.query.seed ?? "0"),
    draw: ({ lab, value, change }) =>
      html`<${NumberInput} label="Seed of the inputs" text=${lab.query.seed ?? "0"} isNumber=${value !== null} onInput=${change} />`,
  },
  calls: {
    read: ({ lab, values }) => chosen(lab, "calls", CALLS, fittingCalls(lab, values.batch)),
    draw: ({ value, change }) => html`<${Slider} label="Calls in a row" values=${CALLS} value=${value} onInput=${change} />`,
  },
  outputs: {
    read: ({ lab }) => lab.query.outputs === "on",
    draw: ({ value, change }) =>
      html`<${Switch} label="Show what it returns" checked=${value} onChange=${(on) => change(on ? "on" : null)} />`,
  },
};

/** The number that `text` is; null where it is none from 0 on, or too large to be exact. */
function wholeNumber(text) {
  const number = /^\d+$/.test(text) ? Number(text) : NaN;
  return Number.isSafeInteger(number) ? number : null;
}

const isGiven = (value) => value !== undefined && value !== null && value !== "";

/**
 * What the form holds, without the fields named in `without`: `{values, isWhole, fields}`. `wanted`: what to choose
 * where the address does not, by field.
 */
export function useRequest(lab, { wanted = {}, without = [] } = {}) {
  const [prompt, setPrompt] = useState(PROMPT);
  const isShown = (name) => !without.includes(name) && (FIELDS[name].isHere?.(lab) ?? true);
  const values = {};
  const fields = lab.workload.fields.filter(isShown).map((name) => {
    const { read, draw } = FIELDS[name];
    const value = (values[name] = read({ lab, values, wanted, prompt }));
    const change = (next) => lab.changeQuery({ [name]: next });
    return html`<${draw} ...${{ lab, value, change, setPrompt }} key=${name} />`;
  });
  return { values, fields, isWhole: Object.values(values).every(isGiven) };
}
