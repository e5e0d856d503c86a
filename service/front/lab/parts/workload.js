// What is served, as the views need it: they ask it for fields, phases and texts, and do not know which one it is.

import { forward } from "./forward.js";
import { generate } from "./generate.js";

/**
 * `fields`: of the form (parts/request.js), whose values `bodyOf` makes the body of a request, `stepsOf` one whose steps
 * are all run. `send({lab, values, signal, show})` sends it and shows what is known as `Answer`. `rate`: the metric of
 * its throughput. `verdictOn(results, modes)` and `agreementOf(result, modes)`: whether a comparison's modes answered
 * alike. `perStep(seconds, values)`: of a median, where it is of several steps alone. `medians`: what they are of.
 */
const KINDS = { generate, forward };

/** `workload` of GET /v1/modes with these. */
export const described = (workload) => ({ ...workload, ...KINDS[workload.name] });
