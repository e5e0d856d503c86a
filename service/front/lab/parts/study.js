// A study: run with its progress, cancelled by leaving, and read again under its id without running anything.

import { html, useCallback, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { Problem, isAbort } from "./client.js";
import { Empty, Failed, Loading } from "./controls.js";

/**
 * The study `name`: `{running, problem, kept, progress, run(body), cancel, again}`. `kept` is null or
 * `{id, study, arguments, created, finding}`. Its id stands in the address under `key`, so that a link shows the
 * finding.
 */
export function useStudy(lab, name, key = "finding") {
  const [work, start, cancel] = useWork();
  const [progress, setProgress] = useState(null);
  const [asked, setAsked] = useState(null);
  const on = (event, data) => event === "progress" && setProgress(data);
  const run = (body) => {
    setAsked({ body });
    setProgress(null);
    return start(async (signal) => {
      const kept = await lab.events(`/v1/studies/${name}`, body, { signal, on, last: "finding" });
      lab.changeQuery({ [key]: kept.id });
      return kept;
    });
  };
  const read = (id) => start((signal) => readKept(lab, name, id, signal));
  useEffect(() => void (lab.query[key] && read(lab.query[key])), []);
  const again = () => (asked ? run(asked.body) : read(lab.query[key]));
  return { running: work.running, problem: work.problem, kept: work.value, progress, run, cancel, again };
}

async function readKept(lab, name, id, signal) {
  const { studies } = await lab.get("/v1/studies", { signal });
  const entry = studies.find((each) => each.id === id && each.study === name);
  const message = `the finding ${id} is not kept any more: measure it again`;
  if (!entry) throw new Problem(404, { type: "not_found", message });
  return { ...entry, finding: await lab.get(`/v1/studies/${id}`, { signal }) };
}

/** The button that runs `study` with `body`, its state, and `children(finding)` once there is one. */
export function StudyRun({ study, body, label, empty, children }) {
  const { running, problem, kept, progress } = study;
  const start = () => study.run(body);
  return html`<div class="study">
    <p class="row"><button type="button" class="primary" disabled=${running} onClick=${start}>${label}</button></p>
    ${running && html`<${Progress} progress=${progress} onCancel=${study.cancel} />`}
    ${problem && html`<${Failed} problem=${problem} onRetry=${study.again} />`}
    ${kept === null && !running && !problem && html`<${Empty}>${empty}<//>`}
    ${kept && children(kept.finding)} ${kept && html`<${Origin} ...${kept} />`}
  </div>`;
}

function Progress({ progress, onCancel }) {
  const { message = "waiting for the engine to pause", done, total } = progress ?? {};
  return html`<${Loading} what=${total ? `${message}, ${done} of ${total} done` : message} onCancel=${onCancel} />`;
}

function Origin({ id, created }) {
  const at = new Date(created).toLocaleTimeString("en-GB");
  return html`<p class="note" data-id=${id}>
    Measured here at ${at}, while the engine was paused; kept as ${id} until the service ends.
  </p>`;
}

// What a view has under way: one piece of work, its outcome, and the way to end it.

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
