// A tape drawn: operators above, autograd's nodes below, and between them the tensors that were saved.

import { html, useMemo } from "../vendor/htm-preact.js";
import { bytes } from "./numbers.js";
import { BOX, feedPath, tapeLayout } from "./tapelayout.js";

/** `forward` and `backward` of a tape finding; with grad mode off `backward` is empty. */
export function TapeDrawing({ forward, backward }) {
  const layout = useMemo(() => tapeLayout(forward, backward), [forward, backward]);
  return html`<div class="scroll tape" tabindex="0" role="region" aria-label="The tape, drawn; the tables below have the same in words">
    <svg width=${layout.width} height=${layout.height} viewBox="0 0 ${layout.width} ${layout.height}" aria-hidden="true" data-nodes=${layout.nodes.length} data-saved=${layout.saved.length}>
      ${layout.feeds.map((feed) => html`<path class="feed" d=${feedPath(feed)} />`)}
      ${layout.saved.map((edge, place) => html`<${SavedEdge} ...${edge} place=${place} />`)}
      ${layout.operators.map(({ operator, x, y }, place) => html`<${Box} kind=${operator.is_view ? "operator view" : "operator"} x=${x} y=${y} first="${place} ${shortName(operator.operator)}" second=${ofOperator(operator)} title=${`${operator.operator} → ${shape(operator.shape)}`} />`)}
      ${layout.nodes.map(({ node, x, y }) => html`<${Box} kind="node" x=${x} y=${y} first="${node.index} ${node.name.replace("Backward0", "")}" second=${ofNode(node)} title=${titleOf(node)} />`)}
    </svg>
  </div>`;
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

export const shape = (sizes) => sizes.join("×") || "scalar";
export const shortName = (operator) => operator.replace("aten.", "").replace(".default", "");
/** Bytes of the elements that a node saved. */
export const savedBytes = (node) => node.saved.reduce((sum, tensor) => sum + tensor.tensor_bytes, 0);
/** One saved tensor in words. */
export const savedText = (tensor) =>
  `${tensor.name}: ${shape(tensor.shape)} ${tensor.dtype}, ${bytes(tensor.tensor_bytes)}, ${tensor.of ? `${tensor.kind} ${tensor.of}` : tensor.kind}`;

const cut = (text) => (text.length > 17 ? `${text.slice(0, 16)}…` : text);
const ofOperator = (operator) => (operator.is_view ? `${shape(operator.shape)} view` : shape(operator.shape));
const ofNode = (node) => (node.saved.length ? `saves ${bytes(savedBytes(node))}` : "saves nothing");
const titleOf = (node) => [node.name, ...node.saved.map(savedText)].join("\n");
