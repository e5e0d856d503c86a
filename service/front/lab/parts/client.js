// Requests to this service: each carries the lab's label and, where the service has one, its key.

// The service refuses measurements of the lab while a sweep measures, so that none is in a sweep's statistics.
const LABEL = { "X-Launchbound-Client": "lab" };

export class Client {
  #key = null;
  #asking = null;
  #askKey;

  /** `askKey(message)` promises the key that a person typed, and rejects where none is given. */
  constructor(askKey) {
    this.#askKey = askKey;
  }

  /** Whether the service has a key, as far as this page has learnt. */
  get keyed() {
    return this.#key !== null;
  }

  /** GET as JSON. Throws Problem, or AbortError where `signal` ended it. */
  async get(path, { signal } = {}) {
    return (await this.#send(path, { signal })).json();
  }

  /** GET as text, for /metrics and reports. Throws as `get`. */
  async text(path, { signal } = {}) {
    return (await this.#send(path, { signal })).text();
  }

  /** POST as JSON. Throws as `get`. */
  async post(path, body, { signal } = {}) {
    return (await this.#send(path, this.#posted(body, "application/json", signal))).json();
  }

  /**
   * POST and read server-sent events: `on(name, data)` for each, in order. Returns the data of the event `last`.
   * Throws as `get`, also for an `error` event and for a stream that ends before `last`.
   */
  async events(path, body, { signal, on = () => {}, last = "result" } = {}) {
    const answer = await this.#send(path, this.#posted(body, "text/event-stream", signal));
    for await (const { name, data } of readEvents(answer.body)) {
      if (name === "error") throw new Problem(answer.status, data.error);
      on(name, data);
      if (name === last) return data;
    }
    const message = `the stream ended before its ${last}: see the service's log`;
    throw new Problem(0, { type: "stream_ended", message });
  }

  #posted(body, accept, signal) {
    const headers = { "Content-Type": "application/json", Accept: accept };
    return { method: "POST", body: JSON.stringify(body), headers, signal };
  }

  async #send(path, init) {
    for (;;) {
      const key = this.#key;
      const answer = await this.#fetch(path, init, key);
      if (answer.ok) return answer;
      const problem = await problemOf(answer);
      if (answer.status !== 401) throw problem;
      if (key === this.#key) await this.#newKey(problem);
    }
  }

  async #fetch(path, init, key) {
    const bearer = key === null ? {} : { Authorization: `Bearer ${key}` };
    try {
      return await fetch(path, { ...init, headers: { ...init.headers, ...LABEL, ...bearer }, cache: "no-store" });
    } catch (error) {
      if (isAbort(error)) throw error;
      throw new Problem(0, { type: "no_answer", message: "the service does not answer: see whether it still runs" });
    }
  }

  /** One question for all requests that were refused meanwhile. */
  async #newKey(problem) {
    this.#asking ??= this.#askKey(problem).finally(() => (this.#asking = null));
    this.#key = await this.#asking;
  }
}

async function problemOf(answer) {
  const seconds = Number.parseInt(answer.headers.get("Retry-After") ?? "", 10);
  const retryAfter = Number.isNaN(seconds) ? null : seconds;
  try {
    return new Problem(answer.status, (await answer.json()).error, retryAfter);
  } catch {
    // Not of this service: a proxy before it answers in a form of its own.
    const message = `the answer was ${answer.status} ${answer.statusText}`;
    return new Problem(answer.status, { type: "http_error", message });
  }
}

// Server-sent events of a POST, which EventSource cannot send.

/**
 * Yields `{name, data}` per event of a body whose data lines are JSON; a line may arrive in pieces. Throws Problem
 * where the connection breaks.
 */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffered = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(broken);
      if (done) return;
      const blocks = (buffered + value).split("\n\n");
      buffered = blocks.pop();
      for (const block of blocks) yield* eventOf(block);
    }
  } finally {
    // Of a stream that broke this fails as its reading did, which has been reported.
    await reader.cancel().catch(() => {});
  }
}

function broken(error) {
  if (isAbort(error)) throw error;
  throw new Problem(0, { type: "stream_broken", message: "the connection broke: see whether the service still runs" });
}

/** The event of one block; none where it is a comment, which keeps a connection alive. */
function* eventOf(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5));
  }
  if (data.length > 0) yield { name, data: JSON.parse(data.join("\n")) };
}

// What goes wrong with a request, in the service's own words.

/** An answer that is an error: `message` names the remedy; `retryAfterSeconds` is null where none was given. */
export class Problem extends Error {
  constructor(status, { type, message, param = null }, retryAfterSeconds = null) {
    super(message);
    Object.assign(this, { status, type, param, retryAfterSeconds });
  }
}

/** Whether `error` says that the page itself ended the request. */
export const isAbort = (error) => error?.name === "AbortError";
