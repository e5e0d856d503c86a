// One operator's call, slice by slice: a bar to scrub through, and the slice where the slider stands.

import { html } from "../vendor/htm-preact.js";
import { Slider } from "./controls.js";
import { Interval } from "./interval.js";
import { significant } from "./numbers.js";

/** What happens in a slice, from the user's line inwards. */
const MEANINGS = {
  python: "torch's own Python around the call",
  binding: "arguments are parsed, an overload is chosen, the result is wrapped",
  autocast: "the Autocast key: its inputs are cast where it has a rule",
  autograd: "the Autograd keys: a node is made, and tensors are saved",
  dispatcher: "one pass of the dispatcher, by the key set, to a kernel",
  operator: "the backend before it computes: further passes, shapes, types",
  allocator: "memory for the results",
  launch: "the kernel is handed to the device",
  kernel: "the elements are computed",
};

const LABELLED = 0.09; // the share of the width from which a name fits into its slice

/** Seconds of an interval of microseconds. */
export function micros({ value, low, high, samples }) {
  const seconds = (end) => (end === null ? null : end * 1e-6);
  return { value: seconds(value), low: seconds(low), high: seconds(high), samples };
}

/** Scrub through `finding.slices`; `at` is the place of the slider, `onMove(place)` moves it. */
export function Scrubber({ finding, at, onMove }) {
  const { slices } = finding;
  const place = Math.min(at, slices.length - 1);
  const named = (each) => `${each + 1} of ${slices.length}: ${slices[each].name}`;
  return html`<section class="card scrubber" aria-label="The call, slice by slice">
    <${Bar} slices=${slices} at=${place} />
    <${Slider} label="Slice" min=${0} max=${slices.length - 1} value=${place} format=${named} onInput=${onMove} />
    <${One} slice=${slices[place]} />
  </section>`;
}

const width = (slice) => (slice.in_sum ? Math.max(0, slice.microseconds.value) : 0);

/** Only what is in the sum has a width. Slices before the slider's are full, those after it pale. */
function Bar({ slices, at }) {
  const total = slices.reduce((sum, slice) => sum + width(slice), 0);
  const state = (place) => (place === at ? "now" : place < at ? "passed" : "ahead");
  return html`<div class="slices" aria-hidden="true">
    ${slices.map((slice, place) => {
      const share = total > 0 ? width(slice) / total : 0;
      const kind = slice.name === "kernel" ? "kernel" : "host";
      return share > 0 && html`<span key=${slice.name} class="slice ${kind} ${state(place)}" style=${{ width: `${100 * share}%` }}>
        ${share > LABELLED && slice.name}
      </span>`;
    })}
  </div>`;
}

function One({ slice }) {
  const { name, keys, running_microseconds: running, why_not, experiment } = slice;
  return html`<div class="one" data-slice=${name} role="status">
    <h2>${name}</h2>
    <p>${MEANINGS[name]} ${keys.map((key) => html`<code class="key" key=${key}>${key}</code> `)}</p>
    <p><${SliceTime} slice=${slice} large /></p>
    ${running && html`<p>So far <${Interval} ...${micros(running)} /></p>`}
    ${why_not === null && html`<p class="note">How it is separated: ${experiment}.</p>`}
  </div>`;
}

function SliceTime({ slice, large = false }) {
  const { microseconds, in_sum, why_not } = slice;
  if (microseconds === null) return html`<${Interval} value=${null} why=${why_not} />`;
  const beside = html` <span class="soft">not in the sum: switched off here, or beside the host</span>`;
  return html`<${Interval} ...${micros(microseconds)} large=${large} />${!in_sum && beside}`;
}

const runningOf = ({ running_microseconds: running }) => running && html`<${Interval} ...${micros(running)} />`;

/** All slices as a table: what each takes, and the sum so far. */
export const SLICE_COLUMNS = [
  { key: "name", title: "slice" },
  { key: "microseconds", title: "time", show: (slice) => html`<${SliceTime} slice=${slice} />` },
  { key: "running", title: "sum so far", numeric: true, show: runningOf },
  { key: "keys", title: "keys whose kernels it is", show: ({ keys }) => keys.join(", ") || null },
  {
    key: "experiment",
    title: "separated by",
    show: ({ why_not, experiment }) => (why_not === null ? experiment : null),
  },
];

/** Whether the sum of the slices is the whole call, in a sentence. */
export function agreementText({ sum_microseconds: sum, whole_microseconds: whole, agreement, agrees }) {
  const [parts, apart, ratio] = [sum, whole, agreement].map(({ value }) => significant(value));
  const found = `The slices add up to ${parts} µs; the whole call, measured apart, took ${apart} µs: ${ratio} of it`;
  return agrees ? `${found}.` : `${found}, more than 15 % off. Other work disturbed this: measure again.`;
}
