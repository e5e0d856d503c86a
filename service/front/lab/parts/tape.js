// A tape drawn: operators above, autograd's nodes below, and between them the tensors that were saved.

import { html, useMemo } from "../vendor/htm-preact.js";
import { Table } from "./controls.js";
import { bytes } from "./numbers.js";

// Where the boxes and edges of a tape lie: forward operators above, the node of each below it, leaves at the bottom.

const BOX = { width: 128, height: 46 };
const COLUMN = 146;
const LEFT = 8;
const BELOW = 12;
const ROWS = { forward: 8, backward: 142, leaves: 252 };

/**
 * `forward` and `backward` of a tape finding as `{operators, nodes, saved, feeds, width, height}`, in CSS pixels. A
 * node stands below the operator that it was made for; one that no operator has (a leaf's, or of a call that was not
 * seen) stands in the bottom row, below the first node that feeds it.
 */
function tapeLayout(forward, backward) {
  const operators = forward.map((operator, place) => ({ operator, x: LEFT + place * COLUMN, y: ROWS.forward }));
  const recorded = operators.filter(({ operator }) => operator.node !== null);
  const column = new Map(recorded.map(({ operator, x }) => [operator.node, x]));
  const taken = new Set();
  const nodes = backward.map((node) => {
    if (column.has(node.index)) return { node, x: column.get(node.index), y: ROWS.backward };
    return { node, x: free(taken, below(node, backward, column)), y: ROWS.leaves };
  });
  const at = new Map(nodes.map((placed) => [placed.node.index, placed]));
  const right = Math.max(...[...operators, ...nodes].map(({ x }) => x));
  return {
    operators,
    nodes,
    saved: nodes.flatMap(savedEdges),
    feeds: nodes.flatMap((from) => from.node.feeds.map((to) => ({ from, to: at.get(to) }))),
    width: right + COLUMN,
    height: (backward.length > 0 ? ROWS.leaves : ROWS.forward) + BOX.height + BELOW,
  };
}

/** The column of the first node that feeds `node`. */
function below(node, backward, column) {
  const feeding = backward.find(({ index, feeds }) => feeds.includes(node.index) && column.has(index));
  return feeding ? column.get(feeding.index) : LEFT;
}

/** The first column from `x` on that has no box in the bottom row yet, which it then has. */
function free(taken, x) {
  let place = x;
  while (taken.has(place)) place += COLUMN;
  taken.add(place);
  return place;
}

/** One edge per tensor that a node saved, from above into it. */
function savedEdges({ node, x, y }) {
  return node.saved.map((tensor, place) => ({
    tensor,
    x: x + ((place + 1) * BOX.width) / (node.saved.length + 1),
    top: y === ROWS.backward ? ROWS.forward + BOX.height : y - 40,
    bottom: y,
    // Twice the bytes are a little wider; a line is never thinner than a pixel.
    width: Math.max(1, Math.log2(Math.max(2, tensor.tensor_bytes)) / 3),
  }));
}

/** The path of a gradient: from the bottom of one node to the top or the bottom of the next. */
function feedPath({ from, to }) {
  const [startX, startY] = [from.x + BOX.width / 2, from.y + BOX.height];
  const endX = to.x + BOX.width / 2;
  if (to.y > from.y) return `M${startX} ${startY} C${startX} ${startY + 30} ${endX} ${to.y - 30} ${endX} ${to.y}`;
  const low = startY + 20 + Math.min(34, Math.abs(endX - startX) / 12);
  return `M${startX} ${startY} C${startX} ${low} ${endX} ${low} ${endX} ${to.y + BOX.height}`;
}

const LABEL = "The tape, drawn; the tables below have the same in words";

/** `forward`, `backward` and `leaves` of a tape finding; with grad mode off `backward` is empty. */
export function TapeDrawing({ forward, backward, leaves }) {
  const layout = useMemo(() => tapeLayout(forward, backward), [forward, backward]);
  const { operators, nodes, saved, feeds, width, height } = layout;
  return html`<div class="scroll tape" tabindex="0" role="region" aria-label=${LABEL}>
    <svg width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-hidden="true" data-nodes=${nodes.length}>
      ${feeds.map((feed) => html`<path class="feed" d=${feedPath(feed)} />`)}
      ${saved.map((edge, place) => html`<${SavedEdge} ...${edge} place=${place} />`)}
      ${operators.map((placed, place) => html`<${Operator} ...${placed} place=${place} />`)}
      ${nodes.map((placed) => html`<${Node} ...${placed} leaf=${leaves.find(({ node }) => node === placed.node.index)} />`)}
    </svg>
  </div>`;
}

function Operator({ operator, x, y, place }) {
  const made = shape(operator.shape);
  return html`<${Box} kind=${operator.is_view ? "operator view" : "operator"} x=${x} y=${y}
    first=${`${place} ${shortName(operator.operator)}`} second=${operator.is_view ? `${made} view` : made}
    title=${`${operator.operator} → ${made}`} />`;
}

function Node({ node, x, y, leaf }) {
  const saves = node.saved.length ? `saves ${bytes(savedBytes(node))}` : "saves nothing";
  return html`<${Box} kind="node" x=${x} y=${y} first=${`${node.index} ${node.name.replace("Backward0", "")}`}
    second=${leaf ? `.grad of ${leaf.name}` : saves}
    title=${[node.name, ...node.saved.map(savedText)].join("\n")} />`;
}

function Box({ kind, x, y, first, second, title }) {
  return html`<g class="box ${kind}">
    <title>${title}</title>
    <rect x=${x} y=${y} width=${BOX.width} height=${BOX.height} rx="6" />
    <text x=${x + 7} y=${y + 19}>${cut(first)}</text>
    <text class="soft" x=${x + 7} y=${y + 37}>${cut(second)}</text>
  </g>`;
}

/** Labels of neighbouring edges stand one below the other. */
function SavedEdge({ tensor, x, top, bottom, width, place }) {
  return html`<g class="saved ${tensor.kind === "intermediate" ? "own" : "kept"}">
    <title>${savedText(tensor)}</title>
    <line x1=${x} x2=${x} y1=${top} y2=${bottom} stroke-width=${width} />
    <text x=${x + 5} y=${(top + bottom) / 2 + (place % 3) * 15 - 12}>${bytes(tensor.tensor_bytes)}</text>
  </g>`;
}

const LETTERS = 17; // that fit into a box
const cut = (text) => (text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text);

const shape = (sizes) => sizes.join("×") || "scalar";
const shortName = (operator) => operator.replace("aten.", "").replace(".default", "");

/** Bytes of the elements that a node saved. */
const savedBytes = (node) => node.saved.reduce((sum, tensor) => sum + tensor.tensor_bytes, 0);

/** One saved tensor in words. */
function savedText({ name, shape: sizes, dtype, tensor_bytes, kind, of }) {
  return `${name}: ${shape(sizes)} ${dtype}, ${bytes(tensor_bytes)}, ${of ? `${kind} ${of}` : kind}`;
}

// A tape as tables: its operators, its nodes with what they keep, and the steps of the served model beside it.

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
