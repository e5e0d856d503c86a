// The lab's frame: navigation, the service's state, the key, and the view that the address names.

import { html, render, useEffect, useErrorBoundary, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { addressOf, changeQuery, followed, goTo, readAddress } from "./parts/address.js";
import { Client } from "./parts/client.js";
import { KeyDialog } from "./parts/key.js";
import { ServiceLine, useModes } from "./parts/service.js";
import { Failed, Loading } from "./parts/states.js";
import { VIEWS } from "./views.js";

function useAddress() {
  const [address, setAddress] = useState(readAddress);
  useEffect(() => {
    const moved = () => setAddress(readAddress());
    addEventListener("popstate", moved);
    return () => removeEventListener("popstate", moved);
  }, []);
  return address;
}

/** `[client, question]`: the question is open while the service wants a key. */
function useClient() {
  const [question, setQuestion] = useState(null);
  const client = useMemo(() => {
    const ask = (problem) =>
      new Promise((give, reject) => setQuestion({ problem, give, refuse: () => reject(problem) }));
    return new Client((problem) => ask(problem).finally(() => setQuestion(null)));
  }, []);
  return [client, question];
}

function Lab() {
  const { view: chosen, query } = useAddress();
  const [client, question] = useClient();
  const [service, reload] = useModes(client);
  const view = VIEWS.find(({ name }) => name === chosen);
  const lab = {
    get: client.get.bind(client),
    text: client.text.bind(client),
    post: client.post.bind(client),
    events: client.events.bind(client),
    modes: service.value?.modes ?? [],
    engine: service.value?.engine ?? null,
    service: service.value?.service ?? null,
    keyed: client.keyed,
    query,
    changeQuery,
    goTo,
  };
  return html`
    <a class="skip" href="#view">Skip to the view</a>
    <header>
      <p class="name">launchbound <span>lab</span></p>
      <nav aria-label="Views">
        ${VIEWS.map(({ name, title }) => html`<${Link} name=${name} title=${title} here=${name === chosen} key=${name} />`)}
        <a href="/docs">API</a>
      </nav>
      ${service.value && html`<${ServiceLine} ...${service.value} />`}
    </header>
    <main id="view" tabindex="-1">
      ${view
        ? html`<${Shown} ...${{ view, lab, service, reload }} key=${view.name} />`
        : html`<h1>No view '${chosen}'</h1>`}
    </main>
    <${KeyDialog} question=${question} />
  `;
}

function Link({ name, title, here }) {
  return html`<a href=${addressOf(name)} aria-current=${here ? "page" : null} onClick=${followed}>${title}</a>`;
}

let first = true;

/** A view once the modes are known; a fault of its own is shown in its place. */
function Shown({ view, lab, service, reload }) {
  const heading = useRef(null);
  const [fault, forget] = useErrorBoundary();
  useEffect(() => {
    document.title = `${view.title} · launchbound`;
    // A view that was navigated to is read out from its heading; the first one leaves the focus to the browser.
    if (!first) heading.current.focus();
    first = false;
  }, []);
  const content = () => {
    if (fault) return html`<${Failed} problem=${fault} onRetry=${forget} />`;
    if (service.value) return html`<${view.View} lab=${lab} />`;
    if (service.problem) return html`<${Failed} problem=${service.problem} onRetry=${reload} />`;
    return html`<${Loading} what="asking the service for its modes" />`;
  };
  return html`<h1 ref=${heading} tabindex="-1">${view.title}</h1>
    <p class="sentence">${view.sentence}</p>
    ${content()}`;
}

render(html`<${Lab} />`, document.getElementById("lab"));
