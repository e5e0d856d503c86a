// The text format of /metrics, and what PromQL makes of two scrapes of it.

const PREFIX = "launchbound_";
const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)",?/g;
const ESCAPED = { n: "\n", '"': '"', "\\": "\\" };

/** Samples by name, without the prefix of this service: Map of [{labels, value}]. */
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : LINE.exec(line);
    if (match === null) continue;
    const name = match[1].startsWith(PREFIX) ? match[1].slice(PREFIX.length) : match[1];
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ labels: labelsOf(match[2] ?? ""), value: numberOf(match[3]) });
  }
  return samples;
}

function labelsOf(text) {
  const found = [...text.matchAll(LABEL)];
  const unescaped = (value) => value.replace(/\\(.)/g, (_, char) => ESCAPED[char] ?? char);
  return Object.fromEntries(found.map(([, name, value]) => [name, unescaped(value)]));
}

const numberOf = (text) => (/Inf$/.test(text) ? (text.startsWith("-") ? -Infinity : Infinity) : Number(text));

/** The samples of `name` whose labels include `labels`. */
export function select(samples, name, labels = {}) {
  const wanted = Object.entries(labels);
  return (samples.get(name) ?? []).filter((sample) => wanted.every(([label, value]) => sample.labels[label] === value));
}

/** Their sum; null where there is none: it is not measured, which is not 0. */
export function total(samples, name, labels = {}) {
  const found = select(samples, name, labels);
  return found.length > 0 ? found.reduce((sum, { value }) => sum + value, 0) : null;
}

/** How much a counter rose between two scrapes; null where the earlier or later has it not, or it was reset. */
export function increase(before, after, name, labels = {}) {
  const [from, to] = [total(before, name, labels), total(after, name, labels)];
  return from === null || to === null || to < from ? null : to - from;
}

/**
 * Quantile `q` of a classic histogram between two scrapes, as PromQL's histogram_quantile(q, increase(…)): linear within
 * a bucket, 0 below the first, the last finite bound beyond it. Null where nothing was observed.
 */
export function quantile(q, before, after, name, labels = {}) {
  const bounds = select(after, `${name}_bucket`, labels).map((sample) => sample.labels.le);
  const buckets = [...new Set(bounds)]
    .map((le) => ({ le: numberOf(le), count: increase(before, after, `${name}_bucket`, { ...labels, le }) }))
    .sort((one, other) => one.le - other.le);
  const count = buckets.at(-1)?.count ?? null;
  if (!(count > 0)) return null;
  const rank = q * count;
  const place = buckets.findIndex((bucket) => bucket.count >= rank);
  const [low, below] = place === 0 ? [0, 0] : [buckets[place - 1].le, buckets[place - 1].count];
  const { le, count: reached } = buckets[place];
  return le === Infinity ? low : low + ((le - low) * (rank - below)) / (reached - below);
}
