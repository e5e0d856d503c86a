// A timeline in numbers: the steps without a profiler, the tax on each, and what fusing bought.

import { html } from "../vendor/htm-preact.js";
import { Interval } from "./interval.js";
import { significant } from "./numbers.js";
import { Table } from "./table.js";

/** The share of a track's step in which no kernel ran, or why it is not known. */
export function Tax({ track }) {
  if (track.tax === null) return html`<${Interval} value=${null} why=${track.no_tax} />`;
  const { value, low, high, samples } = track.tax.fraction;
  const percent = (share) => (share === null ? null : 100 * share);
  return html`<${Interval} value=${percent(value)} low=${percent(low)} high=${percent(high)} samples=${samples} unit="%" />`;
}

/** How many times as fast the second track's step is. */
export function Speedup({ finding }) {
  const { speedup, tracks } = finding;
  const [first, second] = tracks;
  return html`<section class="card" aria-label="speed-up">
    <h2>${second.mode} against ${first.mode}</h2>
    <p><${Interval} ...${speedup} unit="×" large /></p>
    <p>as fast, by ${speedup.samples} paired rounds. ${fusedText(first, second)}</p>
  </section>`;
}

const isCompiled = (track) => track.blocks.some(({ kind }) => kind === "compiled");

function fusedText(first, second) {
  const counted = [`${first.operators} calls into the dispatcher against ${second.operators}`];
  if (first.kernels !== null && second.kernels !== null) counted.push(`${first.kernels} kernels against ${second.kernels}`);
  return `${fusing(isCompiled(first), isCompiled(second))}: ${counted.join(", ")}.`;
}

function fusing(first, second) {
  if (first === second) return first ? "Both are fused" : "Neither is fused";
  return first ? "Fused against unfused" : "Unfused against fused";
}

const COLUMNS = [
  { key: "mode", title: "mode" },
  { key: "effective", title: "runs as" },
  { key: "wall", title: "step", numeric: true, show: ({ wall }) => html`<${Interval} ...${wall} />` },
  { key: "tax", title: "tax", show: (track) => html`<${Tax} track=${track} />` },
  { key: "operators", title: "calls", numeric: true },
  { key: "launches", title: "launches", numeric: true },
  { key: "kernels", title: "kernels", numeric: true },
  { key: "stretch", title: "under the profiler", numeric: true, show: ({ stretch }) => `× ${significant(stretch)}` },
];

/** Both steps as a table, and what its numbers are. */
export function Summary({ finding }) {
  const { tracks, device } = finding;
  const hows = new Set(tracks.map((track) => track.tax?.how ?? `not known: ${track.no_tax}`));
  const dash = device === "cpu" ? "a CPU launches nothing" : "the profiler could not count it";
  return html`<${Table} caption="Both steps, measured without the profiler" columns=${COLUMNS} rows=${tracks} />
    <p class="note">
      Blocks are times under the profiler, which lengthens a step by the factor in the last column: they show the order
      of events. Tax: ${[...hows].join("; ")}. A dash: ${dash}.
    </p>`;
}
