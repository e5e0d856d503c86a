// Requests of a user's module: what their form makes, and what is shown of their answers.

import { html } from "../vendor/htm-preact.js";
import { Table } from "./controls.js";
import { duration, significant, whole } from "./numbers.js";
import { Measured } from "./timebar.js";

const bodyOf = ({ batch, size, seed, calls }) => ({ batch_size: batch, size, seed, calls });

/** As `parts/workload.js` describes it. */
export const forward = {
  fields: ["mode", "batch", "size", "seed", "calls", "outputs"],
  verb: "Call",
  doing: "is called",
  bodyOf,
  stepsOf: bodyOf,
  send,
  Answer: Called,
  rate: { title: "samples per second", metric: "step_batch_rows_sum", labels: {} },
  verdictOn,
  agreementOf: ({ mode }, modes) => agreed(parityOf(mode, modes)),
  perStep: (seconds, { calls }) => `${duration(seconds / calls)} per call, ${countOf(calls)}`,
  medians: `Medians of the rounds, of the calls alone: HTTP and the wait behind other requests are left out (unless
    instrumentation is off, which times no call).`,
};

const countOf = (calls) => (calls === 1 ? "a single one" : `${whole(calls)} in a row`);

// Outputs were compared by the engine, when each mode became ready: the numbers of an answer are not all there is.

const parityOf = (name, modes) => modes.find(({ mode }) => mode === name)?.parity ?? null;

function agreed(parity) {
  if (parity === null) return { text: "outputs not compared" };
  const most = `largest difference ${significant(parity.max_abs_logit_difference)}`;
  return parity.passed ? { text: `outputs as eager's: ${most}` } : { text: `other outputs than eager: ${most}`, differs: true };
}

function verdictOn(results, modes) {
  const without = (passes) => results.filter(({ mode }) => !passes(parityOf(mode, modes))).map(({ mode }) => mode);
  const [unchecked, different] = [without((parity) => parity !== null), without((parity) => parity?.passed ?? true)];
  if (different.length > 0) return `Not the outputs of eager: ${different.join(", ")}.`;
  if (unchecked.length > 0) return `Outputs not compared with eager's: ${unchecked.join(", ")}.`;
  return "All modes returned what eager does, within the tolerance, when they became ready.";
}

async function send({ lab, values, signal, show }) {
  show(null);
  const body = { ...bodyOf(values), outputs: values.outputs };
  const result = await lab.post(`/v1/modes/${encodeURIComponent(values.mode)}/forward`, body, { signal });
  show({ values, result });
  return result;
}

function Called({ lab, values, result }) {
  return html`<section class="card" aria-label="Time">
      <${Measured} lab=${lab} answer=${result}>
        <p>${callsText(result)}</p>
        <p class="note">Other: the way to the engine and back, inputs${values.outputs && ", what it returned as JSON"}, and
          calls before the timed ones.</p>
      <//>
    </section>
    ${values.outputs && html`<${Outputs} outputs=${result.outputs} />`}`;
}

/** On CUDA, where one call is issued while another runs, from the first to the last. */
const callsSeconds = (phase) => (phase.sync_wait_seconds === null ? phase.wall_seconds : phase.period_seconds);

function callsText({ batch_size, timings }) {
  const { steps } = timings.forward;
  const seconds = callsSeconds(timings.forward);
  if (seconds === null) return `Batch ${batch_size}, ${countOf(steps)}; instrumentation is off, so that no call was timed.`;
  const rate = significant((batch_size * steps) / seconds);
  return `${duration(seconds / steps)} per call, ${countOf(steps)}; batch ${batch_size}, ${rate} samples per second.`;
}

const OUTPUT_COLUMNS = [
  { key: "path", title: "output", show: ({ path }) => html`<code>${path}</code>` },
  { key: "dtype", title: "dtype" },
  { key: "shape", title: "shape" },
  { key: "first", title: "first values" },
];

function Outputs({ outputs }) {
  const rows = leavesOf(outputs, "output");
  const caption = "What the last call returned";
  return html`<${Table} caption=${caption} columns=${OUTPUT_COLUMNS} rows=${rows} identify=${({ path }) => path} />`;
}

const isTensor = ({ dtype, shape, data }) => typeof dtype === "string" && Array.isArray(shape) && data !== undefined;

/** A row per tensor, number or text in the lists and objects of `tree`. */
function leavesOf(tree, path) {
  if (Array.isArray(tree)) return tree.flatMap((part, place) => leavesOf(part, `${path}[${place}]`));
  if (tree === null || typeof tree !== "object") return [{ path, dtype: null, shape: null, first: String(tree ?? "None") }];
  if (isTensor(tree)) return [rowOf(tree, path)];
  return Object.entries(tree).flatMap(([name, part]) => leavesOf(part, `${path}.${name}`));
}

const SHOWN = 4;

function rowOf({ dtype, shape, data }, path) {
  const numbers = [data].flat(Infinity);
  const rest = numbers.length > SHOWN ? ", …" : "";
  return { path, dtype, shape: shape.join(" × ") || "scalar", first: numbers.slice(0, SHOWN).map(written).join(", ") + rest };
}

/** JSON has neither NaN nor infinity: they come as null. */
const written = (value) => (value === null ? "NaN or ∞" : typeof value === "number" ? significant(value) : String(value));
