// Requests of a user's module: what their form makes, and what is shown of their answers.

import { html } from "../vendor/htm-preact.js";
import { Table } from "./controls.js";
import { duration, significant, whole } from "./numbers.js";
import { Measured } from "./timebar.js";

const bodyOf = ({ batch, size, seed, calls }) => ({ batch_size: batch, size, seed, calls });

/** As KINDS in lab.js describes it. */
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
  agreementOf,
  perStep: (seconds, { calls }) => `${duration(seconds / calls)} per call, ${countOf(calls)}`,
  medians: "Medians of the calls alone, without HTTP and the queue (where instrumentation is off, of whole requests).",
};

const countOf = (calls) => (calls === 1 ? "a single one" : `${whole(calls)} in a row`);

function agreementOf({ parity }) {
  if (!parity) return { text: "outputs not compared with eager's" };
  const most = `largest difference ${significant(parity.max_abs_logit_difference)}`;
  if (parity.passed) return { text: `outputs as eager's: ${most}`, differs: false };
  return { text: `other outputs than eager: ${most}`, differs: true };
}

function verdictOn(results) {
  const apart = results.filter((result) => agreementOf(result).differs !== false).map(({ mode }) => mode);
  if (apart.length > 0) return `Not the outputs of eager, or not compared with them: ${apart.join(", ")}.`;
  return "All modes returned what eager does, within the tolerance.";
}

async function send({ lab, values, signal, show }) {
  show(null);
  const body = { ...bodyOf(values), outputs: values.outputs };
  show({ values, result: await lab.post(`/v1/modes/${encodeURIComponent(values.mode)}/forward`, body, { signal }) });
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

function callsText({ batch_size, timings }) {
  const { steps, sync_wait_seconds, wall_seconds, period_seconds } = timings.forward;
  // On CUDA, where one call is issued while another runs, from the first to the last.
  const seconds = sync_wait_seconds === null ? wall_seconds : period_seconds;
  if (seconds === null) return `Batch ${batch_size}, ${countOf(steps)}; instrumentation is off, so that no call was timed.`;
  const rate = significant((batch_size * steps) / seconds);
  return `${duration(seconds / steps)} per call, ${countOf(steps)}; batch ${batch_size}, ${rate} samples per second.`;
}

const OUTPUT_COLUMNS = ["output", "dtype", "shape", "first values"].map((title) => ({ key: title, title }));

function Outputs({ outputs }) {
  const rows = leavesOf(outputs, "output");
  const shown = rows.length > 0 ? rows : [{ output: "output", "first values": "nothing" }];
  return html`<${Table} caption="What the last call returned" columns=${OUTPUT_COLUMNS} rows=${shown} />`;
}

const isTensor = ({ dtype, shape, data }) => typeof dtype === "string" && Array.isArray(shape) && data !== undefined;

/** A row per tensor, number or text in the lists and objects of `tree`. */
function leavesOf(tree, path) {
  if (Array.isArray(tree)) return tree.flatMap((part, place) => leavesOf(part, `${path}[${place}]`));
  if (tree === null || typeof tree !== "object") return [{ output: path, "first values": String(tree ?? "None") }];
  if (!isTensor(tree)) return Object.entries(tree).flatMap(([name, part]) => leavesOf(part, `${path}.${name}`));
  const { dtype, shape, data } = tree;
  const values = [data].flat(Infinity);
  const first = values.slice(0, SHOWN).map(written).join(", ") + (values.length > SHOWN ? ", …" : "");
  return [{ output: path, dtype, shape: shape.join(" × ") || "scalar", "first values": first }];
}

const SHOWN = 4;
/** JSON has neither NaN nor infinity: they come as null. */
const written = (value) => (value === null ? "NaN or ∞" : typeof value === "number" ? significant(value) : String(value));
