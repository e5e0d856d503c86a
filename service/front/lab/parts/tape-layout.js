// Where the boxes and edges of a tape lie: forward operators above, the node of each below it, leaves at the bottom.

export const BOX = { width: 128, height: 46 };
const COLUMN = 146;
const LEFT = 8;
const BELOW = 12;
const ROWS = { forward: 8, backward: 142, leaves: 252 };

/**
 * `forward` and `backward` of a tape finding as `{operators, nodes, saved, feeds, width, height}`, in CSS pixels. A
 * node stands below the operator that it was made for; one that no operator has (a leaf's, or of a call that was not
 * seen) stands in the bottom row, below the first node that feeds it.
 */
export function tapeLayout(forward, backward) {
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
export function feedPath({ from, to }) {
  const [startX, startY] = [from.x + BOX.width / 2, from.y + BOX.height];
  const endX = to.x + BOX.width / 2;
  if (to.y > from.y) return `M${startX} ${startY} C${startX} ${startY + 30} ${endX} ${to.y - 30} ${endX} ${to.y}`;
  const low = startY + 20 + Math.min(34, Math.abs(endX - startX) / 12);
  return `M${startX} ${startY} C${startX} ${low} ${endX} ${low} ${endX} ${to.y + BOX.height}`;
}
