// Where the boxes and edges of a tape lie: forward operators above, the node of each below it, leaves at the bottom.

export const BOX = { width: 128, height: 46 };
const COLUMN = 146;
const LEFT = 8;
export const ROWS = { forward: 8, backward: 142, leaves: 252 };

/**
 * `forward` and `backward` of a tape finding as `{operators, nodes, saved, feeds, width, height}`, in CSS pixels. A
 * node stands below the operator that it was made for; one that no operator has (a leaf's, or of a call that was not
 * seen) stands in the bottom row, below the first node that feeds it.
 */
export function tapeLayout(forward, backward) {
  const operators = forward.map((operator, place) => ({ operator, x: LEFT + place * COLUMN, y: ROWS.forward }));
  const column = new Map(operators.filter(({ operator }) => operator.node !== null).map(({ operator, x }) => [operator.node, x]));
  const taken = new Set();
  const nodes = backward.map((node) => {
    if (column.has(node.index)) return { node, x: column.get(node.index), y: ROWS.backward };
    return { node, x: free(taken, below(node, backward, column)), y: ROWS.leaves };
  });
  const at = new Map(nodes.map((placed) => [placed.node.index, placed]));
  const saved = nodes.flatMap(({ node, x, y }) => node.saved.map((tensor, place) => savedEdge(tensor, place, node.saved.length, x, y)));
  const feeds = nodes.flatMap((from) => from.node.feeds.map((to) => ({ from, to: at.get(to) })));
  const right = Math.max(...[...operators, ...nodes].map(({ x }) => x));
  return { operators, nodes, saved, feeds, width: right + COLUMN, height: backward.length ? ROWS.leaves + BOX.height + 12 : ROWS.forward + BOX.height + 12 };
}

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

function savedEdge(tensor, place, count, x, y) {
  const from = x + ((place + 1) * BOX.width) / (count + 1);
  // Twice the bytes are a little wider; a line is never thinner than a pixel.
  return { tensor, x: from, top: y === ROWS.backward ? ROWS.forward + BOX.height : y - 40, bottom: y, width: Math.max(1, Math.log2(Math.max(2, tensor.tensor_bytes)) / 3) };
}

/** The path of a gradient: from the bottom of one node to the top or the bottom of the next. */
export function feedPath({ from, to }) {
  const [startX, startY] = [from.x + BOX.width / 2, from.y + BOX.height];
  const [endX, endY] = [to.x + BOX.width / 2, to.y];
  if (to.y > from.y) return `M${startX} ${startY} C${startX} ${startY + 30} ${endX} ${endY - 30} ${endX} ${endY}`;
  const low = startY + 20 + Math.min(34, Math.abs(endX - startX) / 12);
  return `M${startX} ${startY} C${startX} ${low} ${endX} ${low} ${endX} ${to.y + BOX.height}`;
}
