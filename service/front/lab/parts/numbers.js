// Numbers as text, by the rules of the reports.

import { html } from "../vendor/htm-preact.js";

/** `value` to `digits` significant digits, never with an exponent: 0.0312, 4.57, 123, 12,300. */
export function significant(value, digits = 3) {
  if (!Number.isFinite(value)) return "∞";
  if (value === 0) return "0";
  const rounded = Number(value.toPrecision(digits));
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(rounded))));
  return rounded.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
}

/** A count without decimals: 12,345. */
export const whole = (count) => count.toLocaleString("en-US", { maximumFractionDigits: 0 });

/** A round number as short as it is, for the ticks of an axis: 0.5, 20. */
export const plain = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 });

const SCALES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];

/** The scale in which `seconds` is read best: `[seconds per unit, unit]`. */
function timeScale(seconds) {
  return SCALES.find(([scale]) => Math.abs(seconds) >= scale) ?? SCALES.at(-1);
}

/** Seconds as text in the unit that fits: "12.3 ms"; a dash for null, which is not measured. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const [scale, unit] = timeScale(seconds);
  return `${significant(seconds / scale)} ${unit}`;
}

/** A share as percent: "41 %"; a dash for null. */
export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`);

/** Bytes with a binary unit: 24.1 MiB. */
export function bytes(count) {
  const found = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([scale]) => count >= scale);
  return found ? `${significant(count / found[0])} ${found[1]}` : `${count} bytes`;
}

// A measured value with its interval and unit; what is not measured says why.

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
