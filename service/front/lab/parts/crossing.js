// Where kernels begin to take as long as dispatch, from the runs of a page.

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/**
 * `runs`: [{batch, dispatch_seconds, dispatch_low_seconds, dispatch_high_seconds, kernel_seconds, sources}], per step.
 * Returns, by rising batch, [{batch, runs, dispatch, kernel}]: means as {value, low, high}, null where not measured.
 */
export function summary(runs) {
  const batches = [...new Set(runs.map(({ batch }) => batch))].sort((one, other) => one - other);
  return batches.map((batch) => {
    const own = runs.filter((run) => run.batch === batch);
    const of = (name) => (own.some((run) => run[name] === null) ? null : mean(own.map((run) => run[name])));
    return { batch, runs: own.length, ...parts(of, own.every(({ sources }) => sources.kernel === "sampled")) };
  });
}

function parts(of, sampled) {
  const [dispatch, kernel] = [of("dispatch_seconds"), of("kernel_seconds")];
  const [low, high] = [of("dispatch_low_seconds"), of("dispatch_high_seconds")];
  const known = low !== null && high !== null && high > 0;
  const turned = (end) => (known && sampled ? left(dispatch + kernel, end) : null);
  return {
    dispatch: dispatch === null ? null : { value: dispatch, low: known ? low : null, high: known ? high : null },
    kernel: kernel === null ? null : { value: kernel, low: turned(high), high: turned(low) },
  };
}

/** What `end` leaves of `wall`. An end at the wall leaves nothing, whatever its last bits are. */
const left = (wall, end) => (end > wall * (1 - 1e-9) ? 0 : wall - end);

/** What `points` of `summary`, with both parts, show of the crossover, as a sentence; with what is open about it. */
export function crossing(points, mode) {
  if (points.length === 0) return `Dispatch and kernel of ${mode} cannot be told apart here.`;
  const bound = points.map(({ dispatch, kernel }) => kernel.value >= dispatch.value);
  const first = bound.indexOf(true);
  const [least, most] = [points[0].batch, points.at(-1).batch];
  if (first < 0) return `No crossover up to batch ${most}: dispatch takes longer than kernels${doubt(points)}.`;
  const lasting = bound.slice(first).every(Boolean) ? "" : ", though not at every batch after it";
  if (first === 0) return `Kernels take longer than dispatch from batch ${least} on${lasting}${doubt(points)}.`;
  const ends = points.slice(first - 1, first + 1);
  return `The lines cross between batch ${ends[0].batch} and ${ends[1].batch}${lasting}${doubt(ends)}.`;
}

/** What to add to a sentence that rests on the order of both parts at these points. */
function doubt(points) {
  if (!points.every(hasInterval)) return "; no interval is known";
  return points.every(isClear) ? "" : ", by values whose intervals overlap";
}

const hasInterval = ({ dispatch, kernel }) => dispatch.low !== null && kernel.low !== null;

/** Whether the intervals of both parts lie apart. */
const isClear = ({ dispatch, kernel }) => dispatch.high < kernel.low || kernel.high < dispatch.low;
