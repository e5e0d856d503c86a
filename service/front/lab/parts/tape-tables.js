// A tape as tables: its operators, its nodes with what they keep, and the steps of the served model beside it.

import { html } from "../vendor/htm-preact.js";
import { bytes } from "./numbers.js";
import { Table } from "./table.js";
import { savedBytes, savedText, shape, shortName } from "./tape.js";

/** The operators in order, each with the node that was made for it. */
export function Forward({ forward, backward }) {
  const columns = [
    { key: "place", title: "#", numeric: true },
    { key: "operator", title: "operator", show: ({ operator }) => shortName(operator) },
    { key: "shape", title: "result", show: (row) => shape(row.shape) },
    { key: "new_bytes", title: "new memory", numeric: true, show: newMemory },
    { key: "node", title: "recorded as", show: ({ node }) => (node === null ? null : `${node} ${backward[node].name}`) },
  ];
  const rows = forward.map((operator, place) => ({ ...operator, place }));
  return html`<${Table} caption="Forward, in order" columns=${columns} rows=${rows} />`;
}

function newMemory({ new_bytes, is_view }) {
  return new_bytes ? bytes(new_bytes) : is_view ? "view" : null;
}

const NODE_COLUMNS = [
  { key: "index", title: "#", numeric: true },
  { key: "name", title: "node" },
  { key: "feeds", title: "feeds", show: ({ feeds }) => feeds.join(", ") || null },
  { key: "saved", title: "keeps", show: kept },
  { key: "bytes", title: "bytes", numeric: true, show: (node) => bytes(savedBytes(node)) },
];

function kept({ saved }) {
  return saved.length > 0 ? saved.map((tensor) => html`<div>${savedText(tensor)}</div>`) : null;
}

/** The nodes in the order in which autograd would run them. */
export function Backward({ backward }) {
  const caption = "Backward, in the order in which autograd would run it";
  return html`<${Table} caption=${caption} columns=${NODE_COLUMNS} rows=${backward} />`;
}

const STEP_COLUMNS = [
  { key: "mode", title: "mode" },
  { key: "tensors", title: "saved tensors", numeric: true, show: ({ held }) => held.tensors },
  { key: "tape", title: "tape", numeric: true, show: ({ held }) => bytes(held.storage_bytes) },
  { key: "own", title: "own", numeric: true, show: ({ held }) => bytes(held.own_bytes) },
  { key: "peak", title: "peak of the step", numeric: true, show: ({ step }) => bytes(step.peak_bytes) },
  { key: "allocations", title: "allocations", numeric: true, show: ({ step }) => step.allocations },
];

/** What a step of the served model keeps, by mode. */
export function Steps({ finding }) {
  const caption = `One ${finding.phase} step of the served model, batch ${finding.batch_bucket}`;
  return html`<${Table} caption=${caption} columns=${STEP_COLUMNS} rows=${finding.steps} />`;
}
