// What a view has under way: one piece of work, its outcome, and the way to end it.

import { useCallback, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { isAbort } from "./problem.js";

/**
 * `[work, run, cancel]`. `run(task)` calls `await task(signal)` and ends what ran before; `work` is
 * `{running, value, problem}`, with the last value kept while the next is under way. Leaving the view cancels.
 */
export function useWork() {
  const [work, setWork] = useState({ running: false, value: null, problem: null });
  const current = useRef(null);
  const cancel = useCallback(() => current.current?.abort(), []);
  useEffect(() => cancel, []);
  const run = useCallback(async (task) => {
    cancel();
    const mine = (current.current = new AbortController());
    const settle = (change) => {
      if (mine === current.current) setWork((before) => ({ ...before, running: false, ...change }));
    };
    setWork((before) => ({ ...before, running: true, problem: null }));
    try {
      settle({ value: await task(mine.signal) });
    } catch (error) {
      settle(isAbort(error) ? {} : { problem: error });
    }
  }, []);
  return [work, run, cancel];
}

/** `[work, reload]` of what a view needs when it opens: `task(signal)` runs at once, and again when `inputs` change. */
export function useLoaded(task, inputs = []) {
  const [work, run] = useWork();
  const load = () => run(task);
  useEffect(() => void load(), inputs);
  return [work, load];
}
