// Live: what the service does now, from /metrics, read again every two seconds while the page is seen.

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { LineChart } from "../parts/chart.js";
import { DataLink, Failed, Loading, Table, batchSizes, colourIn } from "../parts/controls.js";
import { duration, percent, significant, whole } from "../parts/numbers.js";
import { increase, parseMetrics, quantile, select, total } from "../parts/prometheus.js";

export const name = "live";
export const title = "Live";
export const sentence = "What the service does now: requests, latency, queue and modes, from its metrics.";

const EVERY_MILLISECONDS = 2000;

export function View({ lab }) {
  const [{ scrapes, problem }, again] = useScrapes(lab);
  if (problem) return html`<${Failed} problem=${problem} onRetry=${again} />`;
  if (scrapes.length === 0) return html`<${Loading} what="reading the metrics" />`;
  const [rows, figures] = [rowsOf(scrapes, lab), now(scrapes, lab.workload.rate)];
  return html`<${Figures} ...${figures} rate=${lab.workload.rate} />
    <${Rates} scrapes=${scrapes} lab=${lab} />
    <${Table} caption=${`By mode; rates and quantiles over the last ${WINDOW_SECONDS} s`} columns=${columnsFor(lab)} rows=${rows}
      identify=${({ mode }) => mode} />
    <p class="note">Quantiles are those of the histogram's buckets, linear within a bucket, as PromQL's
      histogram_quantile; a dash is what was not measured in this time. The kernel share is that of the newest samples
      of a ${lab.workload.step}, on a GPU of the newest request; headroom: how much faster it would be without its dispatch. The page reads nothing while it is hidden. The lab's own requests are counted too.</p>
    <${DataLink} data=${{ window_seconds: WINDOW_SECONDS, now: figures, modes: rows }} name="live" />`;
}

/** `[{scrapes: [{at, samples}], problem}, again]`: the scrapes of the time shown, oldest first. */
function useScrapes(lab) {
  const [state, setState] = useState({ scrapes: [], problem: null });
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    const ending = new AbortController();
    const scrape = async () => {
      if (document.hidden) return;
      try {
        const samples = parseMetrics(await lab.text("/metrics", { signal: ending.signal }));
        const newest = { at: performance.now() / 1000, samples };
        setState(({ scrapes }) => ({ scrapes: kept(scrapes, newest), problem: null }));
      } catch (problem) {
        if (!ending.signal.aborted) setState(({ scrapes }) => ({ scrapes, problem }));
      }
    };
    scrape();
    const timer = setInterval(scrape, EVERY_MILLISECONDS);
    document.addEventListener("visibilitychange", scrape);
    return () => {
      ending.abort();
      clearInterval(timer);
      document.removeEventListener("visibilitychange", scrape);
    };
  }, [attempt]);
  return [state, () => setAttempt(attempt + 1)];
}

const kept = (scrapes, newest) => [...scrapes.filter(({ at }) => newest.at - at <= CURVE_SECONDS), newest];

function Figures({ rate, engine_up, requests_per_second, in_progress, queue_depth, throughput_per_second, refused }) {
  const figures = {
    engine: engine_up === 1 ? "up" : "down",
    "requests per second": rateText(requests_per_second),
    "in progress": countText(in_progress),
    waiting: countText(queue_depth),
    [rate.title]: rateText(throughput_per_second),
    "refused since the start": countText(refused),
  };
  return html`<div class="cards figures">
    ${Object.entries(figures).map(([label, value]) => html`<div class="card" key=${label} data-figure=${label}>
      <p class="soft">${label}</p><p class="figure">${value ?? "–"}</p>
    </div>`)}
  </div>`;
}

function Rates({ scrapes, lab }) {
  const newest = scrapes.at(-1).at;
  const series = lab.modes.map(({ mode }) => ({
    name: mode,
    colour: colourIn(lab.modes, mode),
    points: ratesOf(scrapes, mode).map(({ at, rate }) => ({ x: at - newest, y: rate })),
  }));
  const moving = series.filter(({ points }) => points.some(({ y }) => y > 0));
  if (moving.length === 0) return html`<p class="state empty">No request has ended while this page looked.</p>`;
  return html`<section class="card" aria-label="Rate">
    <${LineChart} series=${moving} label="Requests per second by mode over two minutes; the table has the numbers"
      xTitle="seconds" yTitle="requests per second" xTicks=${[-CURVE_SECONDS, -CURVE_SECONDS / 2, 0]} />
  </section>`;
}

const columnsFor = (lab) => [
  { key: "mode", title: "mode", show: ({ mode }) => html`<${Swatch} colour=${colourIn(lab.modes, mode)} />${mode}` },
  { key: "state", title: "state" },
  { key: "requests_per_second", title: "requests / s", numeric: true, show: (row) => rateText(row.requests_per_second) },
  { key: "p50_seconds", title: "p50", numeric: true, show: (row) => duration(row.p50_seconds) },
  { key: "p95_seconds", title: "p95", numeric: true, show: (row) => duration(row.p95_seconds) },
  { key: "in_progress", title: "in progress", numeric: true, show: (row) => countText(row.in_progress) },
  { key: "requests", title: "requests", numeric: true, show: (row) => countText(row.requests) },
  { key: "step", title: `one ${lab.workload.step}, by batch`, show: ({ step_seconds }) => byBatch(step_seconds, duration) },
  { key: "share", title: "kernel share, by batch", show: ({ kernel_share }) => sharesText(kernel_share, lab.engine) },
];

const Swatch = ({ colour }) => html`<span class="swatch" style=${{ background: colour }}></span>`;

const rateText = (value) => (value === null ? null : significant(value));
const countText = (value) => (value === null ? null : whole(value));

function sharesText(shares, engine) {
  const headroom = (share) => (engine?.device === "cpu" && share > 0 ? `, headroom ${significant(1 / share)}×` : "");
  return byBatch(shares, (share) => `${percent(share)}${headroom(share)}`);
}

function byBatch(values, format) {
  const lines = Object.entries(values).map(([batch, value]) => html`<div key=${batch}>${batch}: ${format(value)}</div>`);
  return lines.length === 0 ? null : lines;
}

// What two or more scrapes of /metrics say of the present: rates, quantiles, states.

/** Rates and quantiles are over so long. */
const WINDOW_SECONDS = 60;
/** The curve of the rate reaches back so far; scrapes are kept for it. */
const CURVE_SECONDS = 120;

/** The oldest scrape of the window, and the newest. */
function ends(scrapes) {
  const newest = scrapes.at(-1);
  return [scrapes.find(({ at }) => newest.at - at <= WINDOW_SECONDS), newest];
}

function rate(from, to, name, labels) {
  const rose = to.at > from.at ? increase(from.samples, to.samples, name, labels) : null;
  return rose === null ? null : rose / (to.at - from.at);
}

/** The service as a whole; null is what is not known, as a rate by a single scrape. */
function now(scrapes, { metric, labels }) {
  const [from, to] = ends(scrapes);
  return {
    engine_up: total(to.samples, "engine_up"),
    requests_per_second: rate(from, to, "requests_total"),
    in_progress: total(to.samples, "requests_in_progress"),
    queue_depth: total(to.samples, "queue_depth"),
    throughput_per_second: rate(from, to, metric, labels),
    refused: total(to.samples, "requests_rejected_total"),
  };
}

/** One row per mode of GET /v1/modes. */
function rowsOf(scrapes, lab) {
  const [from, to] = ends(scrapes);
  return lab.modes.map(({ mode, state }) => {
    const of = (q) => quantile(q, from.samples, to.samples, "request_duration_seconds", { mode });
    const shares = select(to.samples, "device_bound_index", { mode }).map(({ labels, value }) => [labels.batch, value]);
    return {
      mode,
      state: total(to.samples, "mode_ready", { mode }) === 1 ? "ready" : state === "ready" ? "not ready" : state,
      requests_per_second: rate(from, to, "requests_total", { mode }),
      p50_seconds: of(0.5),
      p95_seconds: of(0.95),
      in_progress: total(to.samples, "requests_in_progress", { mode }),
      requests: total(to.samples, "requests_total", { mode }),
      step_seconds: stepSeconds(from.samples, to.samples, mode, lab),
      kernel_share: Object.fromEntries(shares),
    };
  });
}

/** The mean of the steps of the main phase in this time, by batch. On CUDA, where calls overlap, from call to call. */
function stepSeconds(before, after, mode, { engine, workload }) {
  const name = `step_batch_${engine?.device === "cuda" ? "period" : "wall"}_seconds`;
  const means = batchSizes(engine).flatMap((size) => {
    const labels = { mode, phase: workload.main, batch: String(size) };
    const [seconds, count] = ["sum", "count"].map((kind) => increase(before, after, `${name}_${kind}`, labels));
    return count > 0 ? [[size, seconds / count]] : [];
  });
  return Object.fromEntries(means);
}

/** The rate of `mode` between each two scrapes: [{at, rate}]. */
function ratesOf(scrapes, mode) {
  const between = (from, to) => ({ at: to.at, rate: rate(from, to, "requests_total", { mode }) });
  return scrapes.slice(1).map((to, place) => between(scrapes[place], to)).filter((pair) => pair.rate !== null);
}
