// A tape drawn: operators above, autograd's nodes below, and between them the tensors that were saved.

import { html, useMemo } from "../vendor/htm-preact.js";
import { bytes } from "./numbers.js";
import { BOX, feedPath, tapeLayout } from "./tape-layout.js";

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

export const shape = (sizes) => sizes.join("×") || "scalar";
export const shortName = (operator) => operator.replace("aten.", "").replace(".default", "");

/** Bytes of the elements that a node saved. */
export const savedBytes = (node) => node.saved.reduce((sum, tensor) => sum + tensor.tensor_bytes, 0);

/** One saved tensor in words. */
export function savedText({ name, shape: sizes, dtype, tensor_bytes, kind, of }) {
  return `${name}: ${shape(sizes)} ${dtype}, ${bytes(tensor_bytes)}, ${of ? `${kind} ${of}` : kind}`;
}
