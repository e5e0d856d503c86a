// Labelled controls, each of the browser's own kind: keyboard and screen reader work as everywhere.

import { html, useRef } from "../vendor/htm-preact.js";

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

/** One of `options` ([{value, label, note, disabled}] or texts), as radio buttons; `note` stands under the choice. */
export function Choice({ label, options, value, onChange, disabled = false }) {
  const name = useId("choice");
  const given = options.map((option) => (typeof option === "object" ? option : { value: option }));
  const note = given.find((option) => option.value === value)?.note;
  return html`<fieldset class="control choice" disabled=${disabled}>
    <legend>${label}</legend>
    <div class="options">
      ${given.map(
        (option) => html`<label key=${option.value}>
          <input type="radio" name=${name} checked=${option.value === value} disabled=${option.disabled}
            onChange=${() => onChange(option.value)} />
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
