// A call's way through the dispatcher: its switches, its slices, its keys; and a whole step of such calls.

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { Choice, QueryChoice, Slider, Switch, Table, chosen } from "./controls.js";
import { Interval, bytes, percent, significant } from "./numbers.js";

// One operator's call under the switches of torch's state: each setting is a measurement of its own, and is kept.

/** The calls that the study `operator` knows. */
export const CALLS = [
  "torch.add(x, y)",
  "torch.mul(x, y)",
  "torch.exp(x)",
  "torch.relu(x)",
  "torch.sum(x)",
  "torch.softmax(x, -1)",
  "torch.transpose(x, 0, 1)",
  "torch.matmul(x, weight)",
  "F.layer_norm(x, shape, weight, bias)",
];

const GRADS = [
  { value: "enabled", label: "on" },
  { value: "no_grad", label: "no_grad" },
  { value: "inference_mode", label: "inference mode" },
];
const SIZES = [8, 64, 256, 512].map((size) => ({ value: size, label: `${size} × ${size}` }));
const valuesOf = (options) => options.map(({ value }) => value);

/** The call and the state of torch that the address chooses: the arguments of the study. */
export function switchesOf(lab) {
  return {
    expression: chosen(lab, "call", CALLS, CALLS[0]),
    size: chosen(lab, "size", valuesOf(SIZES), 64),
    grad: chosen(lab, "grad", valuesOf(GRADS), "enabled"),
    autocast: lab.query.autocast === "on",
    requires_grad: lab.query.requires !== "off",
  };
}

const switchesIn = ({ expression, size, grad, autocast, requires_grad }) => {
  return { expression, size, grad, autocast, requires_grad };
};

const queryOf = ({ expression, size, grad, autocast, requires_grad }) => {
  return { call: expression, size, grad, autocast: autocast ? "on" : null, requires: requires_grad ? null : "off" };
};

/** Whether `finding` was made with these switches. */
export const sameRun = (finding, switches) => Object.entries(switches).every(([key, value]) => finding[key] === value);

/** The findings of this page, the newest of equal ones. The switches follow a finding that a link has opened. */
export function useRuns(lab, study) {
  const [runs, setRuns] = useState([]);
  useEffect(() => {
    if (study.kept === null) return;
    const { finding } = study.kept;
    setRuns((before) => [...before.filter((run) => !sameRun(run, switchesIn(finding))), finding]);
    lab.changeQuery(queryOf(finding));
  }, [study.kept]);
  return runs;
}

export function Switches({ lab, switches }) {
  const { expression, size, grad, autocast, requires_grad } = switches;
  return html`<section class="card" aria-label="Which call">
    <${QueryChoice} lab=${lab} name="call" label="Call" options=${CALLS} value=${expression} />
    <${QueryChoice} lab=${lab} name="size" label="On float32 tensors of" options=${SIZES} value=${size} />
    <${QueryChoice} lab=${lab} name="grad" label="Grad mode" options=${GRADS} value=${grad} />
    <${Switch} label="Autocast to bfloat16" checked=${autocast}
      onChange=${(on) => lab.changeQuery({ autocast: on ? "on" : null })} />
    <${Switch} label="The tensors require grad" checked=${requires_grad}
      onChange=${(on) => lab.changeQuery({ requires: on ? null : "off" })} />
  </section>`;
}

/**
 * What autograd takes of this call: `{slice, share, taped, untaped}`, the last two being its findings with grad mode on
 * and in inference mode; null where one of them has not been measured.
 */
export function autogradShare(runs, { expression, size, autocast }) {
  const fixed = { expression, size, autocast, requires_grad: true };
  const [taped, untaped] = ["enabled", "inference_mode"].map((grad) => runs.find((run) => sameRun(run, { ...fixed, grad })));
  if (!taped || !untaped) return null;
  const slice = taped.slices.find((each) => each.name === "autograd").microseconds;
  return { slice, share: percent(slice.value / taped.whole_microseconds.value), taped, untaped };
}

// One operator's call, slice by slice: a bar to scrub through, and the slice where the slider stands.

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

// The dispatch keys of a call: its key set, what torch does at each key, and the calls that follow from it.

const KEY_COLUMNS = [
  { key: "key", title: "key", show: ({ key }) => html`<code class="key">${key}</code>` },
  { key: "kind", title: "what runs there", show: kindOf },
  { key: "source", title: "registered at" },
];

function kindOf({ kind, in_key_set }) {
  if (!in_key_set) return "not on this call: the thread's state takes the key away";
  return kind ?? "nothing: it falls through to the next key";
}

/** The key set of a call of an operator finding, highest priority first, and its entries into the dispatcher. */
export function Keys({ finding }) {
  const { calls, table, notes } = finding;
  const caption = `Dispatch keys of ${calls[0].operator}, highest priority first`;
  return html`<${Table} caption=${caption} columns=${KEY_COLUMNS} rows=${table} />
    <h3>Its entries into the dispatcher</h3>
    <ul class="entries">
      ${calls.map((call, place) => html`<${Entry} ...${call} key=${place} />`)}
    </ul>
    ${notes.map((note) => html`<p class="note" key=${note}>${note}</p>`)}`;
}

function Entry({ operator, depth, keys }) {
  const unknown = html`<span class="absent">keys not known: called from inside a backend's kernel</span>`;
  const visited = keys?.map(({ key, kind }) => html`<span class="key" title=${kind}>${key}</span> `);
  return html`<li data-depth=${depth}><code>${"↳ ".repeat(depth)}${operator}</code> ${visited ?? unknown}</li>`;
}

// A whole step as a list: every call below autograd, with its keys; copies, sync points and views marked.

const MICRO = 1e6;

/** `finding`: of the study `operators`. */
export function StepList({ finding }) {
  const [shown, setShown] = useState("all");
  const every = markedRows(finding);
  const rows = {
    all: every,
    copies: every.filter(({ copies }) => copies.length > 0),
    syncs: every.filter(({ syncs }) => syncs.length > 0),
    views: every.filter(({ is_view }) => is_view),
  };
  const options = Object.entries(rows).map(([kind, of]) => ({ value: kind, label: `${kind} (${of.length})` }));
  const caption =
    `The step's calls in order: medians of ${finding.step_seconds.samples} steps, each less the profiler's own` +
    ` ${significant(finding.event_seconds * MICRO)} µs per inner event`;
  return html`<${Figures} finding=${finding} />
    <${Choice} label="Show" options=${options} value=${shown} onChange=${setShown} />
    ${rows[shown].length > 0
      ? html`<${Table} caption=${caption} columns=${COLUMNS} rows=${rows[shown]} identify=${({ place }) => place} />`
      : html`<p class="absent">This step has no ${shown}.</p>`}
    ${finding.notes.map((note) => html`<p class="note" key=${note}>${note}</p>`)}`;
}

function Figures({ finding }) {
  const { mode, phase, device, step_seconds: step, operators, operators_share, copies, syncs } = finding;
  const copied = bytes(copies.reduce((sum, copy) => sum + copy.bytes, 0));
  const whole = device === "cpu" ? "the whole step" : "until the call returns";
  return html`<div class="cards">
      <section class="card" aria-label="the step">
        <h3>${mode}, ${phase}</h3>
        <${Interval} value=${step.median_seconds} low=${step.low} high=${step.high} samples=${step.samples} large />
        <p>${whole}</p>
      </section>
      <${Figure} label="calls" value=${operators.length} text=${`calls below autograd, ${percent(operators_share)} of the step`} />
      <${Figure} label="copies" value=${copies.length} text=${`copies, ${copied}`} />
      <${Figure} label="sync points" value=${syncs.length}
        text=${`sync points${device === "cpu" ? "; on a CPU none of them waits" : ""}`} />
    </div>
    ${finding.reason && html`<p class="note">Runs as ${finding.effective}: ${finding.reason}.</p>`}
    ${finding.graphs !== null && html`<p>${compilerText(finding)}</p>`}`;
}

function Figure({ label, value, text }) {
  return html`<section class="card" aria-label=${label}><p class="figure">${value}</p><p>${text}</p></section>`;
}

function compilerText({ graphs, graph_break_count, guards, recompiles }) {
  return `The compiler made of it: graphs ${graphs}, breaks ${graph_break_count}, guards ${guards.length}, recompilations ${recompiles}.`;
}

const COLUMNS = [
  { key: "place", title: "#", numeric: true },
  { key: "name", title: "operator", show: nameOf },
  { key: "marks", title: "marks", show: marksOf },
  { key: "keys", title: "keys", show: ({ keys }) => keys?.join(" ") ?? "not known" },
  { key: "shapes", title: "shapes", show: ({ shapes }) => shapes.map((sizes) => sizes.join("×") || "scalar").join(", ") },
  { key: "host", title: "µs", numeric: true, show: (row) => significant(row.host_seconds * MICRO) },
  { key: "sum", title: "sum, µs", numeric: true, show: (row) => significant(row.cumulative_seconds * MICRO, 4) },
  { key: "lead", title: "before, µs", numeric: true, show: (row) => significant(row.lead_seconds * MICRO) },
  { key: "line", title: "called at" },
];

function markedRows({ operators, copies, syncs }) {
  const at = (marks, place) => marks.filter(({ operator }) => operator === place);
  return operators.map((row, place) => ({ ...row, place, copies: at(copies, place), syncs: at(syncs, place) }));
}

function nameOf({ name, overload, within }) {
  const own = name.replace("aten::", "") + (overload === "default" ? "" : `.${overload}`);
  return html`<span title=${within.length ? `within ${within.join(", ")}` : name}>${own}</span>`;
}

function marksOf({ copies, syncs, is_view }) {
  return html`${copies.map((copy) => html`<span class="mark copy">copies ${bytes(copy.bytes)}</span> `)}
    ${syncs.map(({ kind }) => html`<span class="mark sync">sync: ${kind.replaceAll("_", " ")}</span> `)}
    ${is_view && html`<span class="mark">view</span>`}`;
}
