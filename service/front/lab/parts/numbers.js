// Numbers as text, by the rules of the reports.

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
export function timeScale(seconds) {
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
