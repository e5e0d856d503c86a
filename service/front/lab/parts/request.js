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
  const known = lab.modes.flatMap(({ splits }) => splits).find((split) => split.batch === batch);
  const seconds = known?.step_seconds ?? CALLS_SECONDS / 10;
  return CALLS.findLast((calls) => calls * seconds <= CALLS_SECONDS) ?? 1;
}

/** A field that is one of `valuesOf(lab)`; where the address names none, `initial(values, given)`, else the first. */
const oneOf = (name, draw, valuesOf, initial = ([first]) => first) => ({
  read: (given) => chosen(given.lab, name, valuesOf(given.lab), initial(valuesOf(given.lab), given)),
  draw: ({ lab, value, change }) => draw(valuesOf(lab), value, change, lab),
});

const slider = (label) => (values, value, change) =>
  html`<${Slider} label=${label} values=${values} value=${value} onInput=${change} />`;
const choice = (label, optionsOf = (values) => values) => (values, value, change, lab) =>
  html`<${Choice} label=${label} options=${optionsOf(values, lab)} value=${value} onChange=${change} />`;

const inputSizes = (lab) => lab.engine?.input_sizes ?? [];

/**
 * By name: `read({lab, prompt, values, wanted})` is its value, with `values` of the fields before it, and `draw({lab,
 * value, change, setPrompt})` its control. `isHere(lab)`: false where there is none.
 */
const FIELDS = {
  prompt: {
    read: ({ prompt }) => prompt,
    draw: ({ value, setPrompt }) => html`<${TextArea} label="Prompt" value=${value} onInput=${setPrompt} />`,
  },
  mode: oneOf("mode", choice("Mode", (_, lab) => modeOptions(lab.modes)), (lab) => readyModes(lab.modes)),
  batch: oneOf("batch", slider("Batch"), (lab) => batchSizes(lab.engine)),
  tokens: oneOf("tokens", slider("New tokens"), (lab) => lengths(lab.engine), (values, { wanted }) =>
    values.findLast((length) => length <= wanted.tokens)),
  size: { ...oneOf("size", choice("Size"), inputSizes), isHere: (lab) => inputSizes(lab).length > 0 },
  seed: {
    read: ({ lab }) => wholeNumber(lab.query.seed ?? "0"),
    draw: ({ lab, value, change }) =>
      html`<${NumberInput} label="Seed of the inputs" text=${lab.query.seed ?? "0"} isNumber=${value !== null} onInput=${change} />`,
  },
  calls: oneOf("calls", slider("Calls in a row"), () => CALLS, (_, { lab, values }) => fittingCalls(lab, values.batch)),
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

/**
 * What the form holds, without the fields named in `without`: `{values, isWhole, fields, at(batch)}`, the last being
 * its values at another batch. `wanted`: what to choose where the address does not, by field.
 */
export function useRequest(lab, { wanted = {}, without = [] } = {}) {
  const [prompt, setPrompt] = useState(PROMPT);
  const isShown = (name) => !without.includes(name) && (FIELDS[name].isHere?.(lab) ?? true);
  const names = lab.workload.fields.filter(isShown);
  const read = (values, name) => ({ [name]: FIELDS[name].read({ lab, values, wanted, prompt }), ...values });
  const values = names.reduce(read, {});
  const fields = names.map((name) => {
    const change = (next) => lab.changeQuery({ [name]: next });
    return html`<${FIELDS[name].draw} ...${{ lab, value: values[name], change, setPrompt }} key=${name} />`;
  });
  const isWhole = Object.values(values).every((value) => value !== undefined && value !== null && value !== "");
  return { values, fields, isWhole, at: (batch) => names.reduce(read, { batch }) };
}
