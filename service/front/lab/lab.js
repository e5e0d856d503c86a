// The lab's frame: navigation, the service's state, the key, and the view that the address names.

import { html, render, useEffect, useErrorBoundary, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { Client } from "./parts/client.js";
import { Empty, Failed, Loading, useId } from "./parts/controls.js";
import { forward } from "./parts/forward.js";
import { generate } from "./parts/generate.js";
import { significant } from "./parts/numbers.js";
import { useLoaded } from "./parts/study.js";
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
    workload: service.value && { ...service.value.workload, ...KINDS[service.value.workload.name] },
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
        ${VIEWS.filter((each) => !lacks(each, lab)).map(({ name, title }) => html`<${Link} name=${name} title=${title} here=${name === chosen} key=${name} />`)}
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
    if (lacks(view, lab)) return html`<${NotHere} view=${view} />`;
    if (service.value) return html`<${view.View} lab=${lab} />`;
    if (service.problem) return html`<${Failed} problem=${service.problem} onRetry=${reload} />`;
    return html`<${Loading} what="asking the service for its modes" />`;
  };
  return html`<h1 ref=${heading} tabindex="-1">${view.title}</h1>
    <p class="sentence">${view.sentence}</p>
    ${content()}`;
}

/**
 * What is served, as the views need it, so that none asks which it is. `fields`: of the form (parts/request.js), whose
 * values `bodyOf` makes the body of a request, `stepsOf` one whose steps are all run. `send({lab, values, signal, show})`
 * sends it and shows what is known as `Answer`. `rate`: the metric of its throughput. `verdictOn(results)` and
 * `agreementOf(result)`: whether a comparison's modes answered alike. `perStep(seconds, values)`: of a median,
 * where it is of several steps alone; `medians`: what medians are of.
 */
const KINDS = { generate, forward };

/** Whether a view needs a study that this service has not, as far as is known. */
const lacks = ({ needs = [] }, { workload }) =>
  workload !== null && needs.some((study) => !workload.studies.includes(study));

function NotHere({ view }) {
  return html`<${Empty}>${view.title} takes apart what only a language model has, and this service serves a module:
    ${" "}<a href=${addressOf("play")} onClick=${followed}>Play</a> calls it, and
    ${" "}<a href=${addressOf("dispatcher")} onClick=${followed}>Dispatcher</a> takes one of its calls apart.<//>`;
}

// Which view the address names, and the view's own state in its query string.

const FIRST = "play";

/** `{view, query}` of the address; `query` has text values. */
function readAddress() {
  const view = /^\/lab\/([a-z-]+)$/.exec(location.pathname)?.[1] ?? FIRST;
  return { view, query: Object.fromEntries(new URLSearchParams(location.search)) };
}

/** The address of `view` with this query; null and undefined values are left out. */
function addressOf(view, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `/lab/${view}${text && `?${text}`}`;
}

/** Show `view`, as a step of the browser's history. */
function goTo(view, query = {}) {
  history.pushState(null, "", addressOf(view, query));
  dispatchEvent(new PopStateEvent("popstate"));
}

/** Replace values of the query without a step in the history; null removes one. */
function changeQuery(changes) {
  const { view, query } = readAddress();
  history.replaceState(null, "", addressOf(view, { ...query, ...changes }));
  dispatchEvent(new PopStateEvent("popstate"));
}

/** An `onClick` for links of the lab: the page stays, with its key; other buttons and keys act as usual. */
function followed(event) {
  const held = event.ctrlKey || event.metaKey || event.shiftKey || event.altKey;
  if (event.defaultPrevented || event.button !== 0 || held) return;
  const target = new URL(event.currentTarget.href);
  event.preventDefault();
  goTo(target.pathname.split("/").pop(), Object.fromEntries(target.searchParams));
}

// What the service says of itself: its modes, which are asked for again until they are warm.

const AGAIN_MILLISECONDS = 2000;

const ENDS = ["ready", "failed"];

const settled = ({ modes, engine }) => engine?.warm && modes.every(({ state }) => ENDS.includes(state));

/** `[work, reload]` of GET /v1/modes; while modes warm up it is read again every two seconds, if the page is seen. */
function useModes(client) {
  const [service, reload] = useLoaded((signal) => client.get("/v1/modes", { signal }));
  useEffect(() => {
    if (service.running || service.problem || !service.value || settled(service.value)) return undefined;
    const timer = setInterval(() => document.hidden || reload(), AGAIN_MILLISECONDS);
    return () => clearInterval(timer);
  }, [service]);
  return [service, reload];
}

/** One line: model, device, and how many modes are ready. */
function ServiceLine({ modes, engine }) {
  const ready = modes.filter(({ state }) => state === "ready").length;
  const failed = modes.filter(({ state }) => state === "failed").map(({ mode }) => mode);
  return html`<p class="service">
    ${engine === null ? "the engine is starting" : served(engine)}
    ${" "}· ${ready} of ${modes.length} modes ready${failed.length ? `; failed: ${failed.join(", ")}` : ""}
  </p>`;
}

function served({ model, parameters, dtype, device_name, device, torch }) {
  return `${model} (${significant(parameters / 1e6)} M parameters, ${dtype}) on ${device_name || device}, torch ${torch}`;
}

// Asks for the service's key, which stays in this page's memory.

/** `question`: {problem, give(key), refuse()} while the service wants a key, else null. */
function KeyDialog({ question }) {
  const dialog = useRef(null);
  const id = useId("key");
  const [key, setKey] = useState("");
  useEffect(() => {
    if (question && !dialog.current.open) dialog.current.showModal();
    if (!question && dialog.current.open) dialog.current.close();
  }, [question]);
  const give = (event) => {
    event.preventDefault();
    if (key) question.give(key);
    setKey("");
  };
  return html`<dialog ref=${dialog} aria-labelledby="${id}-title" onCancel=${() => question?.refuse()}>
    <form onSubmit=${give}>
      <h2 id="${id}-title">This service has a key</h2>
      <p>${question?.problem.message}. It stays in this page's memory and is gone when the page is closed.</p>
      <label for=${id}>Key</label>
      <input id=${id} type="password" autocomplete="off" required value=${key}
        onInput=${(event) => setKey(event.target.value)} />
      <button type="submit">Use this key</button>
    </form>
  </dialog>`;
}

render(html`<${Lab} />`, document.getElementById("lab"));
