// Probes: one pitfall at a time, live: the step without it and with it, the line to blame, and what it means.

import { html, useState } from "../vendor/htm-preact.js";
import { chosen } from "../parts/choices.js";
import { Choice } from "../parts/controls.js";
import { DataLink } from "../parts/data.js";
import { ProbeResult, RESULT_COLUMNS, resultAnswer } from "../parts/probe-result.js";
import { Question } from "../parts/question.js";
import { Empty, Failed, Loading } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { useLoaded, useWork } from "../parts/work.js";

export const name = "probes";
export const title = "Probes";
export const sentence =
  "One pitfall at a time, live: the step without and with the fault, the counter that it moves, the line to blame and" +
  " the cure.";

/** Questions of their own; another probe is asked about in general. */
const ASK = {
  "sync-point": "Add .item() to the loop: which counter moves, and by how much?",
  "hidden-copy": "Hand a transposed view to an operator: which counter moves, and by how much?",
};
const ASK_ANY = "Put this fault into the loop: which counter moves, and by how much?";

export function View({ lab }) {
  const [list, reload] = useLoaded(async (signal) => (await lab.get("/v1/probes", { signal })).probes);
  if (list.problem) return html`<${Failed} problem=${list.problem} onRetry=${reload} />`;
  if (list.value === null) return html`<${Loading} what="asking the service for its probes" />`;
  return html`<${Probes} lab=${lab} probes=${list.value} />`;
}

function Probes({ lab, probes }) {
  const names = probes.map((probe) => probe.name);
  const picked = chosen(lab, "probe", names, names[0]);
  const { teaches } = probes.find((probe) => probe.name === picked);
  const { results, ...running } = useProbes(lab);
  const result = results[picked];
  const measured = names.filter((each) => results[each]).map((each) => results[each]);
  return html`<div class="columns">
      <section class="card" aria-label="Which probe">
        <${Choice} label="Probe" options=${names} value=${picked} onChange=${(probe) => lab.changeQuery({ probe })} />
      </section>
      <section class="study" aria-label=${picked}>
        <h2 class="first">${picked}</h2>
        <p>It shows that ${teaches}.</p>
        <${Run} ...${running} probe=${picked} result=${result} />
        <${Question} ask=${ASK[picked] ?? ASK_ANY} answer=${result && resultAnswer(result)} missing="Run the probe."
          key=${picked} />
      </section>
    </div>
    ${measured.length > 1 && html`<${Table} caption="Run on this page" columns=${RESULT_COLUMNS} rows=${measured} />`}
    <${DataLink} data=${result} name=${`probe-${picked}`} />`;
}

/** `{results, work, started, start(probe), cancel}`: the newest result of each probe, and the one that runs. */
function useProbes(lab) {
  const [work, run, cancel] = useWork();
  const [results, setResults] = useState({});
  const [started, setStarted] = useState(null);
  const start = (probe) => {
    setStarted(probe);
    return run(async (signal) => {
      const found = await lab.post(`/v1/probes/${encodeURIComponent(probe)}`, {}, { signal });
      setResults((before) => ({ ...before, [probe]: found }));
    });
  };
  return { results, work, started, start, cancel };
}

function Run({ probe, result, work, started, start, cancel }) {
  const problem = started === probe ? work.problem : null;
  const again = () => start(probe);
  const what = `running ${started}, while the engine pauses: some seconds, a minute where it compiles`;
  return html`<p class="row">
      <button type="button" class="primary" disabled=${work.running} onClick=${again}>Run ${probe}</button>
    </p>
    ${work.running && html`<${Loading} what=${what} onCancel=${cancel} />`}
    ${problem && html`<${Failed} problem=${problem} onRetry=${again} />`}
    ${!result && !work.running && !problem && html`<${Empty}>This probe has not run on this page yet.<//>`}
    ${result && html`<${ProbeResult} result=${result} key=${probe} />`}`;
}
