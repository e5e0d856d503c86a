// Where time went, as one stacked bar with its numbers as text.

import { html } from "../vendor/htm-preact.js";
import { partColour } from "./colours.js";
import { duration, percent, whole } from "./numbers.js";

const LABELLED = 0.2; // the share of the width from which a name fits into its segment

/**
 * `parts`: [{name, seconds, note, colour, beside}] in their order; seconds null: not measured, shown as such. Without
 * `colour` (a CSS value) a part has that of its name: queue, dispatch, sync wait, kernel, stall, other. `beside`: it ran
 * beside the others, so it is listed and not stacked. `total`: seconds of the whole; what the parts leave of it is
 * drawn empty. `scale`: seconds of the full width, to set several bars side by side.
 */
export function TimeBar({ parts, total, scale = total, label }) {
  const stacked = parts.filter(({ seconds, beside }) => isMeasured(seconds) && !beside);
  const rest = total - stacked.reduce((sum, { seconds }) => sum + seconds, 0);
  const share = (seconds) => (scale > 0 ? Math.max(0, seconds) / scale : 0);
  return html`<div class="timebar" role="group" aria-label=${label}>
    <div class="track" aria-hidden="true">
      ${stacked.map((part) => html`<${Segment} ...${part} share=${share(part.seconds)} key=${part.name} />`)}
      <${Segment} name="" share=${share(rest)} colour="var(--rest)" />
    </div>
    <dl class="parts">
      ${parts.map((part) => html`<${Part} ...${part} total=${total} key=${part.name} />`)}
    </dl>
  </div>`;
}

const isMeasured = (seconds) => seconds !== null && seconds !== undefined;

function Segment({ name, share, colour = partColour(name) }) {
  const drawn = { width: `${100 * share}%`, background: colour };
  return html`<span class="segment" style=${drawn}>${share >= LABELLED && name}</span>`;
}

function Part({ name, seconds, note, total, colour = partColour(name) }) {
  const share = total > 0 ? percent(seconds / total) : "";
  return html`<div data-part=${name} data-seconds=${seconds ?? ""}>
    <dt><span class="swatch" style=${{ background: colour }}></span>${name}</dt>
    <dd>
      ${isMeasured(seconds)
        ? html`<b>${duration(seconds)}</b> <span class="soft">${share}</span>`
        : html`<span class="absent">not measured here</span>`}
      ${note && html`<small>${note}</small>`}
    </dd>
  </div>`;
}

/**
 * The parts that add up to the total of an answer's `timings`. On a CPU kernels are a part of their own; on CUDA they
 * run beside the host, which waits for them. `phases`: the names of those that it has.
 */
export function partsOf(timings, phases) {
  const onHost = timings.sync_wait_seconds === null;
  const beside = onHost
    ? { name: "kernel", seconds: timings.kernel_seconds, note: timings.sources.kernel }
    : { name: "sync wait", seconds: timings.sync_wait_seconds, note: besideNote(timings) };
  const dispatch = { name: "dispatch", seconds: timings.dispatch_seconds, note: dispatchNote(timings, phases) };
  const unknown = [dispatch, beside].filter(({ seconds }) => seconds === null).map(({ name }) => name);
  const note = unknown.length ? `${unknown.join(" and ")} in it: not measured here` : "";
  const other = { name: "other", seconds: timings.other_seconds, note };
  const stall = { name: "stall", seconds: timings.stall_seconds, note: "others, merged with it, were prefilled" };
  const stalls = isMeasured(timings.stall_seconds) ? [stall] : [];
  return [{ name: "queue", seconds: timings.queue_seconds }, dispatch, beside, ...stalls, other];
}

function dispatchNote(timings, phases) {
  const { dispatch } = timings.sources;
  if (dispatch !== "sampled") return dispatch;
  const sum = (end) => phases.reduce((seconds, phase) => seconds + (timings[phase][`dispatch_${end}_seconds`] ?? 0), 0);
  return `sampled, ${duration(sum("low"))} to ${duration(sum("high"))}`;
}

const SIDES = ["kernel", "host", "system", "unclassified"];
const WHOSE = { request: "its own steps", traffic: "the newest steps like its own" };

/** What the split of an answer's `timings` rests on, by phase; nothing where it has no samples. */
function samplesOf(timings, phases) {
  const sampled = phases.filter((phase) => timings[phase].samples_of);
  return sampled.map((name) => {
    const phase = timings[name];
    const counts = SIDES.map((side) => `${whole(phase[`${side}_samples`])} ${side}`);
    return `Samples of ${name}: ${counts.join(", ")}; in ${WHOSE[phase.samples_of]}.`;
  });
}

function besideNote({ kernel_seconds, sources }) {
  if (kernel_seconds === null) return "kernels ran beside the host, for an unknown time until a request is profiled";
  return `kernels ran for ${duration(kernel_seconds)} beside the host (${sources.kernel})`;
}

/** The time of a request's `answer`, its parts and the mode that it ran in; `children`: what else it says. */
export function Measured({ lab, answer, children }) {
  const { mode, device, model, timings } = answer;
  const unsplit = timings.dispatch_seconds === null && lab.engine?.no_samples;
  return html`<h2 class="figure" data-total=${timings.total_seconds}>${duration(timings.total_seconds)}</h2>
    <${TimeBar} label="Where the time went" parts=${partsOf(timings, lab.workload.phases)} total=${timings.total_seconds} />
    ${children}
    ${samplesOf(timings, lab.workload.phases).map((text) => html`<p class="note" key=${text}>${text}</p>`)}
    ${unsplit && html`<p class="note">Dispatch and kernel cannot be told apart: ${unsplit}.</p>`}
    <p data-effective=${mode.effective}>${model} ran in <b>${mode.effective}</b> on ${device}, ${whyOf(mode)}.</p>`;
}

function whyOf({ requested, effective, reason }) {
  return `${effective === requested ? "as requested" : `not in ${requested}`}${reason ? `: ${reason}` : ""}`;
}
