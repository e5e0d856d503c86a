// Server-sent events of a POST, which EventSource cannot send.

import { isAbort, Problem } from "./problem.js";

/**
 * Yields `{name, data}` per event of a body whose data lines are JSON; a line may arrive in pieces. Throws Problem
 * where the connection breaks.
 */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffered = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(broken);
      if (done) return;
      const blocks = (buffered + value).split("\n\n");
      buffered = blocks.pop();
      for (const block of blocks) yield* eventOf(block);
    }
  } finally {
    // Of a stream that broke this fails as its reading did, which has been reported.
    await reader.cancel().catch(() => {});
  }
}

function broken(error) {
  if (isAbort(error)) throw error;
  throw new Problem(0, { type: "stream_broken", message: "the connection broke: see whether the service still runs" });
}

/** The event of one block; none where it is a comment, which keeps a connection alive. */
function* eventOf(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5));
  }
  if (data.length > 0) yield { name, data: JSON.parse(data.join("\n")) };
}
