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

/** Seconds of an interval of microseconds. */
export const micros = (interval) => {
  const scaled = (end) => (end === null ? null : end * 1e-6);
  return { value: scaled(interval.value), low: scaled(interval.low), high: scaled(interval.high), samples: interval.samples };
};

/** Scrub through `finding.slices`; `at` is the place of the slider, `onMove(place)` moves it. */
export function Scrubber({ finding, at, onMove }) {
  const { slices } = finding;
  const place = Math.min(at, slices.length - 1);
  return html`<section class="card scrubber" aria-label="The call, slice by slice">
    <${Bar} slices=${slices} at=${place} />
    <${Slider} label="Slice" min=${0} max=${slices.length - 1} value=${place} format=${(each) => `${each + 1} of ${slices.length}: ${slices[each].name}`} onInput=${onMove} />
    <${One} slice=${slices[place]} />
  </section>`;
}

/** Only what is in the sum has a width. Slices before the slider's are full, those after it pale. */
function Bar({ slices, at }) {
  const total = slices.reduce((sum, slice) => sum + width(slice), 0);
  return html`<div class="slices" aria-hidden="true">
    ${slices.map((slice, place) => {
      const share = total > 0 ? width(slice) / total : 0;
      const state = place === at ? "now" : place < at ? "passed" : "ahead";
      return share > 0 && html`<span key=${slice.name} class="slice ${slice.name === "kernel" ? "kernel" : "host"} ${state}" style=${{ width: `${100 * share}%` }}>${share > 0.09 && slice.name}</span>`;
    })}
  </div>`;
}

const width = (slice) => (slice.in_sum ? Math.max(0, slice.microseconds.value) : 0);

function One({ slice }) {
  return html`<div class="one" data-slice=${slice.name} role="status">
    <h2>${slice.name}</h2>
    <p>${MEANINGS[slice.name]}${slice.keys.length > 0 && html`: ${slice.keys.map((key) => html`<code class="key" key=${key}>${key}</code> `)}`}</p>
    <${SliceTime} slice=${slice} large />
    ${slice.running_microseconds && html`<p>So far <${Interval} ...${micros(slice.running_microseconds)} /></p>`}
    <p class="note">${slice.why_not === null ? `How it is separated: ${slice.method}.` : ""}</p>
  </div>`;
}

function SliceTime({ slice, large = false }) {
  if (slice.microseconds === null) return html`<${Interval} value=${null} why=${slice.why_not} />`;
  return html`<${Interval} ...${micros(slice.microseconds)} large=${large} />${!slice.in_sum && html` <span class="soft">not in the sum: switched off here, or beside the host</span>`}`;
}

/** All slices as a table: what each takes, and the sum so far. */
export const SLICE_COLUMNS = [
  { key: "name", title: "slice" },
  { key: "microseconds", title: "time", numeric: true, show: (slice) => html`<${SliceTime} slice=${slice} />` },
  { key: "running", title: "sum so far", numeric: true, show: (slice) => slice.running_microseconds && html`<${Interval} ...${micros(slice.running_microseconds)} />` },
  { key: "keys", title: "keys whose kernels it is", show: (slice) => slice.keys.join(", ") || null },
  { key: "method", title: "separated by", show: (slice) => (slice.why_not === null ? slice.method : null) },
];

/** Whether the sum of the slices is the whole call, in a sentence. */
export function agreementText({ sum_microseconds, whole_microseconds, agreement, agrees }) {
  const parts = `The slices add up to ${significant(sum_microseconds.value)} µs; the whole call, measured apart, took ${significant(whole_microseconds.value)} µs: ${significant(agreement.value)} of it`;
  return agrees ? `${parts}.` : `${parts}, which is more than 15 % off. Other work disturbed this: measure again.`;
}
