// Runs: the sweeps under the service's results folder, their reports, and two of them compared.

import { html, useState } from "../vendor/htm-preact.js";
import { Comparison } from "../parts/comparison.js";
import { Switch } from "../parts/controls.js";
import { DataLink, save } from "../parts/data.js";
import { Empty, Failed, Loading } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { useLoaded, useWork } from "../parts/work.js";

export const name = "runs";
export const title = "Runs";
export const sentence = "The sweeps under the results folder of this service: their reports, and two of them compared.";

export function View({ lab }) {
  const [work, reload] = useLoaded((signal) => lab.get("/v1/runs", { signal }));
  if (work.problem) return html`<${Failed} problem=${work.problem} onRetry=${reload} />`;
  if (work.value === null) return html`<${Loading} what="reading the results folder" />`;
  const { folder, runs } = work.value;
  if (runs.length === 0) {
    return html`<${Empty}>There is no sweep in ${folder}: run <code>launchbound sweep</code>, or start the service
      with LAUNCHBOUND_RESULTS_FOLDER set to where the results are.<//>`;
  }
  return html`<p class="soft">The sweeps in ${folder}.</p>
    <${List} lab=${lab} runs=${runs} />
    <${Pair} lab=${lab} runs=${runs} />
    <${DataLink} data=${work.value} name="runs" />`;
}

function List({ lab, runs }) {
  const [work, run] = useWork();
  const saved = (name) =>
    run(async (signal) => save(await lab.text(reportPath(name), { signal }), `${name}.html`, "text/html"));
  return html`${work.problem && html`<${Failed} problem=${work.problem} />`}
    <${Table} caption="Sweeps, newest first" columns=${columns(lab, saved)} rows=${runs} identify=${({ name }) => name} />`;
}

const reportPath = (name) => `/v1/runs/${encodeURIComponent(name)}/report`;

const columns = (lab, saved) => [
  { key: "name", title: "sweep", show: nameAndStart },
  { key: "headline", title: "answer", show: answer },
  { key: "valid", title: "gates", show: ({ valid }) => gates(valid) },
  { key: "model", title: "of", show: subject },
  {
    key: "report",
    title: "report",
    show: ({ name, has_report }) => (has_report ? html`<${ReportLinks} lab=${lab} name=${name} saved=${saved} />` : null),
  },
];

const nameAndStart = ({ name, started }) => html`<b>${name}</b><br /><small>${started ?? "start not recorded"}</small>`;

function answer({ headline, problem }) {
  return headline ?? html`<span class="absent">${problem ?? "no report yet: launchbound report"}</span>`;
}

function subject({ model, device_name, commit }) {
  const built = commit === null ? "commit not recorded" : `commit ${commit}`;
  return html`${model ?? "model not recorded"} on ${device_name ?? "a device not recorded"}<br /><small>${built}</small>`;
}

function gates(valid) {
  if (valid === null) return html`<span class="absent">not checked</span>`;
  return valid ? html`<span class="good">passed</span>` : html`<span class="bad">failed</span>`;
}

/** With a key a report cannot be opened by its address, as a link carries no key: it is saved. */
function ReportLinks({ lab, name, saved }) {
  const [open, kept] = [`Open the report of ${name}`, `Save the report of ${name}`];
  return html`<div class="row">
    ${!lab.keyed && html`<a href=${reportPath(name)} target="_blank" rel="noopener" aria-label=${open}>open</a>`}
    <button type="button" onClick=${() => saved(name)} aria-label=${kept}>save</button>
  </div>`;
}

function Pair({ lab, runs }) {
  const [work, run, cancel] = useWork();
  const names = runs.map(({ name }) => name);
  const [force, setForce] = useState(false);
  const after = names.includes(lab.query.after) ? lab.query.after : names[0];
  const before = names.includes(lab.query.before) ? lab.query.before : names[1] ?? names[0];
  const possible = !work.running && before !== after;
  const compare = () => run((signal) => lab.post("/v1/runs/compare", { before, after, force }, { signal }));
  return html`<section aria-labelledby="pair">
    <h2 id="pair">Compare two</h2>
    <div class="pair">
      <${Pick} label="Before" names=${names} value=${before} onChange=${(name) => lab.changeQuery({ before: name })} />
      <${Pick} label="After" names=${names} value=${after} onChange=${(name) => lab.changeQuery({ after: name })} />
    </div>
    <${Switch} label="Compare unlike runs too, and say what differs" checked=${force} onChange=${setForce} />
    <p><button class="primary" type="button" disabled=${!possible} onClick=${compare}>Compare</button></p>
    ${work.problem && html`<${Failed} problem=${work.problem} />`}
    ${work.running && html`<${Loading} what="launchbound compare reads both sweeps" onCancel=${cancel} />`}
    ${work.value && html`<${Comparison} ...${work.value} />`}
    ${!work.value && !work.running && !work.problem && html`<${Empty}>
      ${before === after ? "Choose two sweeps." : "Nothing has been compared yet."}
    <//>`}
    <${DataLink} data=${work.value} name="comparison" />
  </section>`;
}

function Pick({ label, names, value, onChange }) {
  return html`<label class="control">${label}
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${names.map((name) => html`<option value=${name} selected=${name === value} key=${name}>${name}</option>`)}
    </select>
  </label>`;
}
