// What several views take in: a prompt, the modes, batch sizes and lengths of this service.

import { modeColour } from "./colours.js";

/** Python that the shipped model goes on with. */
export const PROMPT = "def mean(values):\n";

const LENGTHS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/** Lengths that leave half of the context to the prompt. */
export const lengths = (engine) => LENGTHS.filter((length) => length <= (engine?.context ?? 64) / 2);

/** The batch sizes that are not padded to a larger one. */
export const batchSizes = (engine) => engine?.batch_buckets ?? [1];

/** The modes as options of a Choice; those that cannot run are disabled, their reason is the note. */
export function modeOptions(modes) {
  return modes.map(({ mode, state, removes, detail }) => ({
    value: mode,
    disabled: state !== "ready",
    note: state === "ready" ? `Removes ${removes}.` : `${mode} is ${state}${detail ? `: ${detail}` : ""}.`,
  }));
}

/** The names of the modes that serve. */
export const readyModes = (modes) => modes.filter(({ state }) => state === "ready").map(({ mode }) => mode);

/** The colour of `mode` among those of this service. */
export const colourIn = (modes, mode) => modeColour(mode, modes.map((one) => one.mode));
