// A study: run with its progress, cancelled by leaving, and read again under its id without running anything.

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { Problem } from "./problem.js";
import { Empty, Failed, Loading } from "./states.js";
import { useWork } from "./work.js";

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
