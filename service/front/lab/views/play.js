// Play: one request through one mode, its answer, and where its time went.

import { html, useState } from "../vendor/htm-preact.js";
import { DataLink, Empty, Failed, Loading } from "../parts/controls.js";
import { useRequest } from "../parts/request.js";
import { useWork } from "../parts/study.js";

export const name = "play";
export const title = "Play";
export const sentence = "Send a request through one mode, and see its answer and where its time went.";

export function View({ lab }) {
  const { verb, doing, send, Answer } = lab.workload;
  const [known, setKnown] = useState(null);
  const [work, run, cancel] = useWork();
  const { values, fields, isWhole } = useRequest(lab, { wanted: { tokens: 32 } });
  const start = () => run((signal) => send({ lab, values, signal, show: setKnown }));
  const shown = known && (work.running || known.result || known.count > 0);
  return html`<div class="columns">
    <form class="card" onSubmit=${(event) => (event.preventDefault(), start())}>
      ${fields}
      <button class="primary" disabled=${work.running || !isWhole}>${verb}</button>
    </form>
    <div>
      ${work.problem && html`<${Failed} problem=${work.problem} onRetry=${start} />`}
      ${work.running && html`<${Loading} what=${`${values.mode} ${doing}`} onCancel=${cancel} />`}
      ${!shown && !work.running && !work.problem && html`<${Empty}>
        Nothing has run yet: choose a mode and press ${verb}.
      <//>`}
      ${shown && html`<${Answer} ...${known} lab=${lab} running=${work.running} />`}
      <${DataLink} data=${known?.result} name="play" />
    </div>
  </div>`;
}
