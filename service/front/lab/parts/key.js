// Asks for the service's key, which stays in this page's memory.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { useId } from "./controls.js";

/** `question`: {problem, give(key), refuse()} while the service wants a key, else null. */
export function KeyDialog({ question }) {
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
