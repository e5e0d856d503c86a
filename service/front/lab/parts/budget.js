// The dispatch budget's formulas, those of `service.anatomy.budget` and `service.statistics.boundedness`: a test
// computes both on a grid of values and holds them equal. Durations are in one unit, whichever it is.

const LAUNCH_BOUND_BELOW = 0.2;
const KERNEL_BOUND_FROM = 0.5;

/** Length of a step: the sum on a CPU; on CUDA, where both overlap, the longer one. */
export const stepOf = (dispatch, kernel, device) => (device === "cpu" ? dispatch + kernel : Math.max(dispatch, kernel));

/** How many times as fast a step is if `left` is all that remains of its dispatch. */
export const withoutDispatch = (step, kernel, left = 0) => Math.max(1, step / (kernel + left));

/** How many times as fast a step is with these shares of its dispatch and kernels; null where nothing is left. */
export function speedupWith(dispatchRatio, kernelRatio, dispatch, kernel, device) {
  const left = stepOf(dispatch * dispatchRatio, kernel * kernelRatio, device);
  return left > 0 ? stepOf(dispatch, kernel, device) / left : null;
}

/** `{dispatch, share, bound}` of a step with `operators` calls of `each`, and kernels of `kernel`. */
export function budgetOf(operators, each, kernel) {
  const dispatch = operators * each;
  const share = kernel / (kernel + dispatch);
  return { dispatch, share, bound: boundOf(share) };
}

/** The class of a kernel share on a GPU. */
export function boundOf(share) {
  if (share < LAUNCH_BOUND_BELOW) return "launch-bound";
  return share >= KERNEL_BOUND_FROM ? "kernel-bound" : "balanced";
}

const CLASSES = ["launch-bound", "balanced", "kernel-bound"];

/** The ends of a step's kernel share, within the intervals {low, high} of its dispatch and kernel; null: no end. */
export function shareWithin(dispatch, kernel) {
  const share = (part, other) => (part === 0 ? 0 : part / (part + other));
  const high = kernel.high === null ? 1 : share(kernel.high, dispatch.low ?? 0);
  return { low: share(kernel.low ?? 0, dispatch.high ?? Infinity), high };
}

/** The classes that such a share touches. */
export function boundsWithin(dispatch, kernel) {
  const { low, high } = shareWithin(dispatch, kernel);
  return CLASSES.slice(CLASSES.indexOf(boundOf(low)), CLASSES.indexOf(boundOf(high)) + 1);
}

/** The answer to "will compile help?" on a GPU, by class. */
export const HELP = {
  "launch-bound": "yes",
  balanced: "some",
  "kernel-bound": "little by removing dispatch; only fused kernels, which move less memory, could do more",
};
