// A measured value with its interval and unit; what is not measured says why.

import { html } from "../vendor/htm-preact.js";
import { duration, significant, timeScale } from "./numbers.js";

/**
 * `unit` "s": seconds, written in the unit that fits; else written after the number ("×", "bytes").
 * `low` and `high` null: no interval, which is said with `samples`, or with `why`. `value` null: not measured, for the
 * reason `why`.
 */
export function Interval({ value, low = null, high = null, unit = "s", samples = null, why = "", large = false }) {
  if (value === null || value === undefined) return html`<span class="absent">not measured${why && `: ${why}`}</span>`;
  const [scale, written] = unit === "s" ? timeScale(value) : [1, unit];
  const span = () => `${significant(low / scale)}–${significant(high / scale)}${of(samples)}`;
  const ends = low === null || high === null ? noInterval(samples, why) : span();
  const text = unit === "s" ? duration(value) : `${significant(value)}${written === "×" ? "" : " "}${written}`;
  return html`<span class=${large ? "interval large" : "interval"}><b>${text}</b> <span class="soft">(${ends})</span></span>`;
}

const of = (samples) => (samples === null ? "" : `, n = ${samples}`);

function noInterval(samples, why) {
  if (samples !== null) return `no interval, n = ${samples}`;
  return why ? `no interval: ${why}` : "no interval";
}
