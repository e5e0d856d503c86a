// Dispatch against kernel of one step, by batch: measured here, until the lines cross.

import { html, useState } from "../vendor/htm-preact.js";
import { LineChart } from "./chart.js";
import { partColour } from "./colours.js";
import { Choice, DataLink, Empty, Failed, Loading, Table, batchSizes, modeOptions, readyModes } from "./controls.js";
import { Interval, percent } from "./numbers.js";
import { useWork } from "./study.js";

const RUNS = 3; // of each press, per batch

/** `request` is the view's; runs of another one are another measurement, but for its batch. */
export function BatchCurve({ lab, request }) {
  const [runs, setRuns] = useState([]);
  const [work, run, cancel] = useWork();
  const [ready, batches] = [readyModes(lab.modes), batchSizes(lab.engine)];
  const mode = ready.includes(lab.query.curve) ? lab.query.curve : ready[0];
  const { step } = lab.workload;
  const of = JSON.stringify({ mode, ...request.at(batches[0]) });
  const same = runs.filter((one) => one.of === of);
  const measure = (sizes) =>
    run(async (signal) => {
      for (const size of sizes) {
        for (let number = 0; number < RUNS; number++) {
          const found = await oneStep(lab, mode, request.at(size), signal);
          setRuns((before) => [...before, { of, ...found }]);
        }
      }
    });
  const possible = mode !== undefined && request.isWhole && !work.running;
  return html`<section aria-labelledby="curve">
    <h2 id="curve">One ${step}, by batch</h2>
    <${Choice} label="Mode of the curve" options=${modeOptions(lab.modes)} value=${mode} disabled=${work.running}
      onChange=${(curve) => lab.changeQuery({ curve })} />
    <div class="row">
      <button type="button" disabled=${!possible} onClick=${() => measure([request.values.batch])}>Measure batch ${request.values.batch}</button>
      <button type="button" disabled=${!possible} onClick=${() => measure(batches)}>Measure every batch</button>
      <button type="button" disabled=${runs.length === 0} onClick=${() => setRuns([])}>Forget all</button>
    </div>
    ${work.problem && html`<${Failed} problem=${work.problem} />`}
    ${work.running && html`<${Loading} what=${`${mode} runs, ${RUNS} times per batch`} onCancel=${cancel} />`}
    ${same.length > 0 && html`<${Curve} points=${summary(same)} mode=${mode} step=${step} batches=${batches} />`}
    ${same.length === 0 && !work.running && html`<${Empty}>
      No step of ${mode} has been measured here with this request.
    <//>`}
    <${DataLink} data=${same.length > 0 ? same : null} name="dispatch-by-batch" />
  </section>`;
}

/** One request's mean step of the main phase: seconds per step, null where the device does not tell. */
async function oneStep(lab, mode, values, signal) {
  const { name: route, main, stepsOf } = lab.workload;
  const { timings } = await lab.post(`/v1/modes/${encodeURIComponent(mode)}/${route}`, stepsOf(values), { signal });
  const { steps, ...phase } = timings[main];
  const perStep = (name) => (phase[`${name}_seconds`] === null ? null : phase[`${name}_seconds`] / steps);
  const names = ["dispatch", "dispatch_low", "dispatch_high", "kernel", "wall"];
  const seconds = Object.fromEntries(names.map((each) => [`${each}_seconds`, perStep(each)]));
  return { mode, batch: values.batch, steps, ...seconds, sources: timings.sources };
}

function Curve({ points, mode, step, batches }) {
  const known = points.filter(({ dispatch, kernel }) => dispatch !== null && kernel !== null);
  const point = ({ batch }, { value, low, high }) => ({ x: batch, y: value * 1e3, low: scaled(low), high: scaled(high) });
  const series = ["dispatch", "kernel"].map((part) => {
    return { name: part, colour: partColour(part), points: known.map((each) => point(each, each[part])) };
  });
  return html`<p class="figure" data-crossing>${crossing(known, mode)}</p>
    ${known.length > 0 && html`<${LineChart} series=${series} label=${`Dispatch and kernel of one ${step} of ${mode}, by batch`}
      xTitle="batch" yTitle=${`ms per ${step}`} xTicks=${batches} xScale="log" />`}
    <${Table} caption=${`One ${step} of ${mode}: means of the runs on this page`} columns=${COLUMNS} rows=${points}
      identify=${({ batch }) => batch} />
    <p class="note">Bars and brackets are the interval of a sampled dispatch (docs/method.md), means over the runs;
      kernel, the rest of the step, has the same interval, turned round.</p>`;
}

const scaled = (seconds) => (seconds === null ? null : seconds * 1e3);

const ABSENT = { value: null, why: "the step has no samples, or on a GPU no request was profiled" };
const COLUMNS = [
  { key: "batch", title: "batch", numeric: true },
  { key: "dispatch", title: "dispatch", show: ({ dispatch }) => html`<${Interval} ...${dispatch ?? ABSENT} />` },
  { key: "kernel", title: "kernel", show: ({ kernel }) => html`<${Interval} ...${kernel ?? ABSENT} />` },
  { key: "share", title: "kernel share", numeric: true, show: shareOf },
  { key: "runs", title: "runs", numeric: true },
];

function shareOf({ dispatch, kernel }) {
  return dispatch && kernel ? percent(kernel.value / (kernel.value + dispatch.value)) : null;
}

// Where kernels begin to take as long as dispatch, from the runs of a page.

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/**
 * `runs`: [{batch, dispatch_seconds, dispatch_low_seconds, dispatch_high_seconds, kernel_seconds, sources}], per step.
 * Returns, by rising batch, [{batch, runs, dispatch, kernel}]: means as {value, low, high}, null where not measured.
 */
export function summary(runs) {
  const batches = [...new Set(runs.map(({ batch }) => batch))].sort((one, other) => one - other);
  return batches.map((batch) => {
    const own = runs.filter((run) => run.batch === batch);
    const of = (name) => (own.some((run) => run[name] === null) ? null : mean(own.map((run) => run[name])));
    return { batch, runs: own.length, ...parts(of, own.every(({ sources }) => sources.kernel === "sampled")) };
  });
}

function parts(of, sampled) {
  const [dispatch, kernel] = [of("dispatch_seconds"), of("kernel_seconds")];
  const [low, high] = [of("dispatch_low_seconds"), of("dispatch_high_seconds")];
  const known = low !== null && high !== null && high > 0;
  const turned = (end) => (known && sampled ? left(dispatch + kernel, end) : null);
  return {
    dispatch: dispatch === null ? null : { value: dispatch, low: known ? low : null, high: known ? high : null },
    kernel: kernel === null ? null : { value: kernel, low: turned(high), high: turned(low) },
  };
}

/** What `end` leaves of `wall`. An end at the wall leaves nothing, whatever its last bits are. */
const left = (wall, end) => (end > wall * (1 - 1e-9) ? 0 : wall - end);

/** What `points` of `summary`, with both parts, show of the crossover, as a sentence; with what is open about it. */
export function crossing(points, mode) {
  if (points.length === 0) return `Dispatch and kernel of ${mode} cannot be told apart here.`;
  const bound = points.map(({ dispatch, kernel }) => kernel.value >= dispatch.value);
  const first = bound.indexOf(true);
  const [least, most] = [points[0].batch, points.at(-1).batch];
  if (first < 0) return `No crossover up to batch ${most}: dispatch takes longer than kernels${doubt(points)}.`;
  const lasting = bound.slice(first).every(Boolean) ? "" : ", though not at every batch after it";
  if (first === 0) return `Kernels take longer than dispatch from batch ${least} on${lasting}${doubt(points)}.`;
  const ends = points.slice(first - 1, first + 1);
  return `The lines cross between batch ${ends[0].batch} and ${ends[1].batch}${lasting}${doubt(ends)}.`;
}

/** What to add to a sentence that rests on the order of both parts at these points. */
function doubt(points) {
  if (!points.every(hasInterval)) return "; no interval is known";
  return points.every(isClear) ? "" : ", by values whose intervals overlap";
}

const hasInterval = ({ dispatch, kernel }) => dispatch.low !== null && kernel.low !== null;

/** Whether the intervals of both parts lie apart. */
const isClear = ({ dispatch, kernel }) => dispatch.high < kernel.low || kernel.high < dispatch.low;
