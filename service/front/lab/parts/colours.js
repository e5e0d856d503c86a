// Colours of modes and parts: classes whose values stand in lab.css, which a test holds equal to the boards'.

const OWN = [
  "eager", "no_grad", "inference_mode", "compiled", "reduce-overhead",
  "cuda-graph", "compiled-captured", "max-autotune", "aot-inductor", "fallback",
];
const PALETTE = 6;

/** The colour of `mode`, one of `modes` (names), as a CSS value; a mode without its own gets the palette's next. */
export function modeColour(mode, modes = []) {
  if (OWN.includes(mode)) return `var(--mode-${mode})`;
  const place = modes.filter((other) => !OWN.includes(other)).indexOf(mode);
  return place < 0 ? "var(--neutral)" : `var(--palette-${place % PALETTE})`;
}

/** The colour of a part of a request's time: queue, dispatch, sync wait, kernel, stall, other. */
export const partColour = (part) => `var(--part-${part.replace(" ", "-")})`;
