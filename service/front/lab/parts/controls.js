// Labelled controls, each of the browser's own kind: keyboard and screen reader work as everywhere.

import { html, useRef, useState } from "../vendor/htm-preact.js";
import { modeColour } from "./colours.js";

let made = 0;
/** An id of this page for a label and its control. */
export function useId(prefix) {
  const id = useRef(null);
  id.current ??= `${prefix}-${++made}`;
  return id.current;
}

/**
 * A slider over `values` (a list, of which one is chosen) or from `min` to `max` by `step`.
 * `onInput(value)` while it moves; `format(value)` is shown, and read out.
 */
export function Slider({ label, value, onInput, values, min = 0, max = 100, step = 1, format = String, disabled }) {
  const id = useId("slider");
  const place = values && Math.max(0, values.indexOf(value));
  const range = values ? { min: 0, max: values.length - 1, step: 1, value: place } : { min, max, step, value };
  const changed = (event) => onInput(values ? values[Number(event.target.value)] : Number(event.target.value));
  return html`<div class="control slider">
    <label for=${id}>${label}</label> <output for=${id}>${format(value)}</output>
    <input type="range" id=${id} ...${range} disabled=${disabled} aria-valuetext=${format(value)} onInput=${changed} />
  </div>`;
}

/**
 * One of `options` ([{value, label, note, disabled}] or texts), as radio buttons; `note` stands under the choice.
 * `several`: any of them, as boxes to tick; `value` is then the list of those chosen, in the order of `options`.
 */
export function Choice({ label, options, value, onChange, disabled = false, several = false }) {
  const name = useId("choice");
  const given = options.map((option) => (typeof option === "object" ? option : { value: option }));
  const note = given.find((option) => option.value === value)?.note;
  const isChosen = (one) => (several ? value.includes(one) : value === one);
  const turned = (one) => given.map((option) => option.value).filter((each) => isChosen(each) !== (each === one));
  return html`<fieldset class="control choice" disabled=${disabled}>
    <legend>${label}</legend>
    <div class="options">
      ${given.map(
        (option) => html`<label key=${option.value}>
          <input type=${several ? "checkbox" : "radio"} name=${name} checked=${isChosen(option.value)} disabled=${option.disabled}
            onChange=${() => onChange(several ? turned(option.value) : option.value)} />
          <span>${option.label ?? option.value}</span>
        </label>`,
      )}
    </div>
    ${note && html`<p class="note">${note}</p>`}
  </fieldset>`;
}

/** On or off. */
export function Switch({ label, checked, onChange, disabled = false }) {
  return html`<label class="control switch">
    <input type="checkbox" role="switch" checked=${checked} disabled=${disabled}
      onChange=${(event) => onChange(event.target.checked)} />
    <span>${label}</span>
  </label>`;
}

/** Several lines of text. */
export function TextArea({ label, value, onInput, rows = 3 }) {
  const id = useId("text");
  return html`<div class="control text">
    <label for=${id}>${label}</label>
    <textarea id=${id} rows=${rows} spellcheck=${false} value=${value}
      onInput=${(event) => onInput(event.target.value)}></textarea>
  </div>`;
}

/** A whole number from 0 on, as `text`; `isNumber` says whether it is one. */
export function NumberInput({ label, text, isNumber, onInput }) {
  const id = useId("number");
  return html`<div class="control">
    <label for=${id}>${label}</label>
    <input type="text" inputmode="numeric" autocomplete="off" id=${id} value=${text} aria-invalid=${String(!isNumber)}
      onInput=${(event) => onInput(event.target.value)} />
    ${!isNumber && html`<p class="note" role="alert">Write a whole number from 0 on.</p>`}
  </div>`;
}

// What the views of studies let one choose: which step of which mode. The choice stands in the address.

/** The query's value under `name` if it is one of `values`, else `otherwise`. */
export function chosen(lab, name, values, otherwise) {
  return values.find((value) => String(value) === lab.query[name]) ?? otherwise;
}

/** A choice whose value stands in the address under `name`. */
export function QueryChoice({ lab, name, label, options, value, disabled }) {
  const change = (next) => lab.changeQuery({ [name]: next });
  return html`<${Choice} label=${label} options=${options} value=${value} disabled=${disabled} onChange=${change} />`;
}

const PHASE_NOTES = { decode: "One token per sequence.", prefill: "One chunk of each prompt." };

/** Mode, batch and phase of the step that a study is of, as the address chooses among those there are here. */
export function stepOf(lab) {
  const [ready, sizes, { phases, main }] = [readyModes(lab.modes), batchSizes(lab.engine), lab.workload];
  return {
    mode: chosen(lab, "mode", ready, ready[0]),
    batch_size: chosen(lab, "batch", sizes, sizes[0]),
    phase: chosen(lab, "phase", phases, main),
  };
}

/** The controls of `stepOf`'s batch and of those `phases` of which there are several; a study has the first size. */
export function StepChoice({ lab, phases = lab.workload.phases }) {
  const { batch_size, phase } = stepOf(lab);
  const [first, ...others] = lab.engine?.input_sizes ?? [];
  const options = [...phases].reverse().map((each) => ({ value: each, note: PHASE_NOTES[each] }));
  return html`<${QueryChoice} lab=${lab} name="batch" label="Batch" options=${batchSizes(lab.engine)} value=${batch_size} />
    ${options.length > 1 && html`<${QueryChoice} lab=${lab} name="phase" label="Phase" options=${options} value=${phase} />`}
    ${others.length > 0 && html`<p class="note">On inputs of the module's first size, ${first}.</p>`}`;
}

// What several views choose among: the modes and batch sizes of this service.

/** The batch sizes that are not padded to a larger one. */
export const batchSizes = (engine) => engine?.batch_buckets ?? [1];

/** The modes as options of a Choice; those that cannot run are disabled, their reason is the note. */
export function modeOptions(modes) {
  return modes.map(({ mode, state, removes, detail }) => ({
    value: mode,
    disabled: state !== "ready",
    note: state === "ready" ? `Removes ${removes}.` : `${mode} is ${state}${detail ? `: ${detail}` : ""}.`,
  }));
}

/** The names of the modes that serve. */
export const readyModes = (modes) => modes.filter(({ state }) => state === "ready").map(({ mode }) => mode);

/** The colour of `mode` among those of this service. */
export const colourIn = (modes, mode) => modeColour(mode, modes.map((one) => one.mode));

// A table that scrolls within itself, never the page.

/**
 * `columns`: [{key, title, numeric, show(row)}]; without `show` the row's `key` is written. `rows`: objects; null is a
 * dash. `caption` names it to screen readers; `identify(row)` tells rows apart, by their place where left out.
 */
export function Table({ caption, columns, rows, identify = (_, place) => place }) {
  return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0">
    <table>
      <caption>${caption}</caption>
      <thead>
        <tr>${columns.map((column) => html`<${Heading} ...${column} />`)}</tr>
      </thead>
      <tbody>
        ${rows.map((row, place) => html`<${Row} columns=${columns} row=${row} key=${identify(row, place)} />`)}
      </tbody>
    </table>
  </div>`;
}

function Heading({ title, numeric }) {
  return html`<th scope="col" class=${numeric ? "numeric" : ""}>${title}</th>`;
}

function Row({ columns, row }) {
  return html`<tr>${columns.map((column) => html`<${Cell} column=${column} row=${row} key=${column.key} />`)}</tr>`;
}

function Cell({ column, row }) {
  const shown = column.show ? column.show(row) : row[column.key];
  return html`<td class=${column.numeric ? "numeric" : ""} data-column=${column.key}>${shown ?? "–"}</td>`;
}

// What a view shows in place of data: nothing yet, work under way, or an error with its remedy.

/** Nothing to show yet; the children say what to do. */
export const Empty = ({ children }) => html`<p class="state empty">${children}</p>`;

/** Work under way: `what` in words; `onCancel` ends it. */
export function Loading({ what, onCancel }) {
  return html`<p class="state loading" role="status">
    <span class="pulse" aria-hidden="true"></span>${what}
    ${onCancel && html`<button type="button" onClick=${onCancel}>Cancel</button>`}
  </p>`;
}

/** An error: the message of the service names the remedy. `onRetry` tries again. */
export function Failed({ problem, onRetry }) {
  const inProgress = problem.type === "run_in_progress";
  return html`<div class="state failed" role="alert" data-type=${problem.type}>
    <p><b>${inProgress ? "A sweep is measuring: the lab waits." : "That did not work."}</b> ${problem.message}</p>
    ${problem.retryAfterSeconds != null && html`<p class="soft">Try again in ${problem.retryAfterSeconds} s.</p>`}
    ${onRetry && html`<button type="button" onClick=${onRetry}>Try again</button>`}
  </div>`;
}

// The data behind a view as JSON: opened in the page, or saved as a file.

/** `data`: any JSON value; nothing is shown for null. `name`: of the file, without its ending. */
export function DataLink({ data, name }) {
  const [open, setOpen] = useState(false);
  if (data === null || data === undefined) return null;
  const text = () => JSON.stringify(data, null, 2);
  return html`<div class="data">
    <button type="button" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>
      ${open ? "Hide the data" : "Show the data (JSON)"}
    </button>
    <button type="button" onClick=${() => save(text(), `${name}.json`)}>Save as ${name}.json</button>
    ${open && html`<pre tabindex="0" role="region" aria-label="The view's data">${text()}</pre>`}
  </div>`;
}

/** Save `text` as a file of the browser's downloads. */
export function save(text, name, type = "application/json") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  // The download has begun by then; the browser keeps what it still reads.
  setTimeout(() => URL.revokeObjectURL(link.href), 0);
}

// A question to think about, and its answer from what the page has measured.

/** `answer`: content once it has been measured, else null, and then `missing` says what to measure for it. */
export function Question({ ask, answer, missing }) {
  const id = useId("question");
  return html`<section class="card question" aria-labelledby=${id}>
    <h2 id=${id}>A question</h2>
    <p>${ask}</p>
    <details>
      <summary>The answer, as measured on this page</summary>
      <p class=${answer ? "answer" : "absent"}>${answer ?? missing}</p>
    </details>
  </section>`;
}
