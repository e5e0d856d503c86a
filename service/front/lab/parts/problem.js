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
