// Which view the address names, and the view's own state in its query string.

const FIRST = "play";

/** `{view, query}` of the address; `query` has text values. */
export function readAddress() {
  const view = /^\/lab\/([a-z-]+)$/.exec(location.pathname)?.[1] ?? FIRST;
  return { view, query: Object.fromEntries(new URLSearchParams(location.search)) };
}

/** The address of `view` with this query; null and undefined values are left out. */
export function addressOf(view, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `/lab/${view}${text && `?${text}`}`;
}

/** Show `view`, as a step of the browser's history. */
export function goTo(view, query = {}) {
  history.pushState(null, "", addressOf(view, query));
  dispatchEvent(new PopStateEvent("popstate"));
}

/** Replace values of the query without a step in the history; null removes one. */
export function changeQuery(changes) {
  const { view, query } = readAddress();
  history.replaceState(null, "", addressOf(view, { ...query, ...changes }));
  dispatchEvent(new PopStateEvent("popstate"));
}

/** An `onClick` for links of the lab: the page stays, with its key; other buttons and keys act as usual. */
export function followed(event) {
  const held = event.ctrlKey || event.metaKey || event.shiftKey || event.altKey;
  if (event.defaultPrevented || event.button !== 0 || held) return;
  const target = new URL(event.currentTarget.href);
  event.preventDefault();
  goTo(target.pathname.split("/").pop(), Object.fromEntries(target.searchParams));
}
