// What two or more scrapes of /metrics say of the present: rates, quantiles, states.

import { increase, quantile, select, total } from "./prometheus.js";

/** Rates and quantiles are over so long. */
export const WINDOW_SECONDS = 60;
/** The curve of the rate reaches back so far; scrapes are kept for it. */
export const CURVE_SECONDS = 120;

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
export function now(scrapes) {
  const [from, to] = ends(scrapes);
  return {
    engine_up: total(to.samples, "engine_up"),
    requests_per_second: rate(from, to, "requests_total"),
    in_progress: total(to.samples, "requests_in_progress"),
    queue_depth: total(to.samples, "queue_depth"),
    tokens_per_second: rate(from, to, "tokens_total", { kind: "generated" }),
    refused: total(to.samples, "requests_rejected_total"),
  };
}

/** One row per mode of GET /v1/modes. */
export function rowsOf(scrapes, modes) {
  const [from, to] = ends(scrapes);
  return modes.map(({ mode, state }) => {
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
      kernel_share: Object.fromEntries(shares),
    };
  });
}

/** The rate of `mode` between each two scrapes: [{at, rate}]. */
export function ratesOf(scrapes, mode) {
  const between = (from, to) => ({ at: to.at, rate: rate(from, to, "requests_total", { mode }) });
  return scrapes.slice(1).map((to, place) => between(scrapes[place], to)).filter((pair) => pair.rate !== null);
}
