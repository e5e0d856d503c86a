// Runs: the sweeps under the service's results folder, and their reports.

import { html } from "../vendor/htm-preact.js";
import { DataLink, Empty, Failed, Loading, Table, save } from "../parts/controls.js";
import { useLoaded, useWork } from "../parts/study.js";

export const name = "runs";
export const title = "Runs";
export const sentence = "The sweeps under the results folder of this service, and their reports.";

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
