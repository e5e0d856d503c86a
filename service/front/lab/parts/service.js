// What the service says of itself: its modes, which are asked for again until they are warm.

import { html, useEffect } from "../vendor/htm-preact.js";
import { significant } from "./numbers.js";
import { useLoaded } from "./work.js";

const AGAIN_MILLISECONDS = 2000;

const ENDS = ["ready", "failed"];

const settled = ({ modes, engine }) => engine?.warm && modes.every(({ state }) => ENDS.includes(state));

/** `[work, reload]` of GET /v1/modes; while modes warm up it is read again every two seconds, if the page is seen. */
export function useModes(client) {
  const [service, reload] = useLoaded((signal) => client.get("/v1/modes", { signal }));
  useEffect(() => {
    if (service.running || service.problem || !service.value || settled(service.value)) return undefined;
    const timer = setInterval(() => document.hidden || reload(), AGAIN_MILLISECONDS);
    return () => clearInterval(timer);
  }, [service]);
  return [service, reload];
}

/** One line: model, device, and how many modes are ready. */
export function ServiceLine({ modes, engine }) {
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
