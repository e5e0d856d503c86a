// The stretch of a time axis that is shown: `[from, to]` within `[0, end]`, as numbers of one unit.

const SHORTEST_SHARE = 1 / 5000;

/** `span` moved and shortened so that it lies within the axis. */
export function within([from, to], end) {
  const length = Math.min(Math.max(to - from, end * SHORTEST_SHARE), end);
  const begin = Math.min(Math.max(from, 0), end - length);
  return [begin, begin + length];
}

/** `factor` below 1 shows less, in more detail; what lies at `at` stays where it is. */
export const zoomed = ([from, to], factor, end, at = (from + to) / 2) =>
  within([at - (at - from) * factor, at + (to - at) * factor], end);

/** Moved by `share` of its own length. */
export const moved = ([from, to], share, end) => within([from + share * (to - from), to + share * (to - from)], end);

/** The least move that shows all of `[begin, finish]`, with some room on both sides. */
export function showing(span, begin, finish, end) {
  const length = Math.max(span[1] - span[0], 1.2 * (finish - begin));
  if (begin >= span[0] && finish <= span[1]) return span;
  const middle = (begin + finish) / 2;
  return within([middle - length / 2, middle + length / 2], end);
}
