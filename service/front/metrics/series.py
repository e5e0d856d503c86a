"""The catalogue's rows as Prometheus series, and their exposition."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from math import inf
from time import monotonic

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import SummaryMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from service.front.metrics.catalogue import PREFIX, REQUEST_BUCKETS, MetricSpec, request_buckets, rows_for
from service.workloads import Workload

TRACE_LABEL = "trace_id"

Labels = tuple[str, ...]

Write = Callable[..., None]
"""Records a value in one series; a summary takes the sum of several values, and their number."""

KEPT_SECONDS = 1.0
"""A page is answered again for so long: the event loop renders once a second, however many scrape."""


def new_registry() -> CollectorRegistry:
    """A registry with the collectors of this process: memory, CPU time, files, garbage collections."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, GCCollector, PlatformCollector):
        collector(registry=registry)
    return registry


class Sums(Collector):
    """A summary whose sum and count grow by a whole request's steps at once."""

    def __init__(self, row: MetricSpec) -> None:
        self._row = row
        self._sums: dict[Labels, list[float]] = {}

    def labels(self, *values: str) -> Write:
        found = self._sums.setdefault(values, [0.0, 0])

        def add(total: float, count: int) -> None:
            found[0] += total
            found[1] += count

        return add

    def collect(self) -> Iterator[SummaryMetricFamily]:
        row = self._row
        family = SummaryMetricFamily(PREFIX + row.name, row.help, labels=row.labels, unit=row.unit)
        for labels, (total, count) in self._sums.items():
            family.add_metric(labels, count_value=int(count), sum_value=total)
        yield family


class _HistogramChild:
    """One label set: counts, sum and exemplars of its buckets; `prefixes` stand before its samples."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "_prefixes", "_total")

    def __init__(self, bounds: list[float], prefixes: list[str]) -> None:
        self._bounds = bounds
        self._prefixes = prefixes
        self._counts = [0] * len(bounds)
        self._total = 0.0
        self._exemplars: dict[int, str] = {}

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def exemplify(self, value: float, text: str) -> None:
        self._exemplars[bisect_left(self._bounds, value)] = text

    def lines(self, open_metrics: bool) -> str:
        """Its samples, which both formats write alike; only OpenMetrics has exemplars."""
        counts = [f"{count}.0" for count in accumulate(self._counts)]
        values = [*counts, counts[-1], floatToGoString(self._total)]
        lines = [f"{prefix}{value}" for prefix, value in zip(self._prefixes, values, strict=True)]
        for index, text in self._exemplars.items() if open_metrics else ():
            lines[index] += text
        return "\n".join(lines) + "\n"


class Histogram:
    """A classic histogram for one thread; `bounds` rise, and +Inf is added.

    It keeps what stands before each sample: with the library's, a page of OpenMetrics takes 2.5 times as
    long. Its exemplars are of requests that it does not count, for which the library has no way.
    """

    def __init__(
        self, name: str, text: str, labels: Sequence[str], unit: str, bounds: Iterable[float]
    ) -> None:
        self._name = name
        self._text = text
        self._label_names = labels
        self._unit = unit
        self._bounds = [*map(float, bounds), inf]
        self._children: dict[Labels, _HistogramChild] = {}

    def labels(self, *values: str) -> Write:
        return self._child(values).observe

    def exemplify(self, trace: str, value: float, at: float, *values: str) -> None:
        """Have OpenMetrics show the request `trace`, which ended `at` (Unix time) and is not counted."""
        text = f' # {{{TRACE_LABEL}="{trace}"}} {floatToGoString(value)} {round(at, 3)}'
        self._child(values).exemplify(value, text)

    def exposition(self, open_metrics: bool) -> str:
        unit = f"# UNIT {self._name} {self._unit}\n" if open_metrics and self._unit else ""
        head = f"# HELP {self._name} {self._text}\n# TYPE {self._name} histogram\n{unit}"
        return head + "".join(child.lines(open_metrics) for child in self._children.values())

    def _child(self, values: Labels) -> _HistogramChild:
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = _HistogramChild(self._bounds, self._prefixes(values))
        return child

    def _prefixes(self, values: Labels) -> list[str]:
        """What stands before each value, in the library's order: buckets, count, sum; labels by name."""

        def prefix(suffix: str, **more: str) -> str:
            given = dict(zip(self._label_names, map(_escaped, values), strict=True)) | more
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(given.items()))
            return f"{self._name}_{suffix}{{{labels}}} " if labels else f"{self._name}_{suffix} "

        buckets = [prefix("bucket", le=floatToGoString(bound)) for bound in self._bounds]
        return [*buckets, prefix("count"), prefix("sum")]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


Family = Counter | Gauge | Histogram | Info | Sums


def _writer(family: Family, labels: Labels) -> Write:
    if isinstance(family, Histogram | Sums):
        return family.labels(*labels)
    if isinstance(family, Info):
        child = family.labels(*labels)
        return lambda _: child.info({})
    if isinstance(family, Counter):
        return (family.labels(*labels) if labels else family).inc
    return (family.labels(*labels) if labels else family).set


class Series:
    """The catalogue's rows as series: registered when due, children cached, unknown names refused."""

    def __init__(
        self,
        registry: CollectorRegistry,
        modes: list[str],
        batch_sizes: list[int],
        timeout_seconds: float,
        workload: Workload,
    ) -> None:
        disable_created_metrics()
        self._registry = registry
        self._modes = modes
        self._batch_sizes = batch_sizes
        self._timeout_seconds = timeout_seconds
        self._pages: dict[str, tuple[float, bytes]] = {}
        self._phases = workload.phases
        self._rows = {row.name: row for row in rows_for(workload)}
        self._families: dict[str, Family] = {}
        self._writers: dict[tuple[str, ...], Write] = {}
        self._falls_back = False

    def start(self, *due: str) -> None:
        """Register the rows that start at one of `due`, every label set at 0."""
        if "cuda" in due and not self._falls_back:
            self._falls_back = True
            for name, family in self._families.items():
                self._fill(self._rows[name], family)
        for row in self._rows.values():
            if row.start in due:
                self._family(row.name)

    def write(self, name: str, value: float, *labels: str) -> None:
        self.writer(name, *labels)(value)

    def writer(self, name: str, *labels: str) -> Write:
        """How to write one series: looked up once, as each object on the way costs as much as the number."""
        key = (name, *labels)
        write = self._writers.get(key)
        if write is None:
            write = self._writers[key] = _writer(self._family(name), labels)
        return write

    def exemplify(self, name: str, trace: str, value: float, at: float, *labels: str) -> None:
        family = self._family(name)
        assert isinstance(family, Histogram)
        family.exemplify(trace, value, at, *labels)

    def remove(self, name: str, *labels: str) -> None:
        family = self._family(name)
        assert isinstance(family, Counter | Gauge | Info)
        family.remove(*labels)
        self._writers.pop((name, *labels), None)

    def render(self, accept: str, fresh: bool) -> tuple[bytes, str]:
        """The page as an Accept header requests it, and its type; up to KEPT_SECONDS old, or `fresh`."""
        encode, content_type = choose_encoder(accept)
        rendered, page = self._pages.get(content_type, (-KEPT_SECONDS, b""))
        if fresh or monotonic() - rendered >= KEPT_SECONDS:
            page = self._rendered(encode, content_type)
            self._pages[content_type] = monotonic(), page
        return page, content_type

    def _rendered(self, encode: Callable[[CollectorRegistry], bytes], content_type: str) -> bytes:
        """The library's exposition of all but the histograms, and then theirs."""
        open_metrics = content_type.startswith("application/openmetrics-text")
        end = "# EOF\n" if open_metrics else ""
        histograms = (family for family in self._families.values() if isinstance(family, Histogram))
        written = "".join(histogram.exposition(open_metrics) for histogram in histograms)
        return (encode(self._registry).decode().removesuffix(end) + written + end).encode()

    def _family(self, name: str) -> Family:
        family = self._families.get(name)
        if family is None:
            row = self._rows[name]
            family = self._families[name] = self._register(row)
            self._fill(row, family)
        return family

    def _fill(self, row: MetricSpec, family: Family) -> None:
        """Have every label set there can be at 0, if it is not there yet."""
        if row.kind in ("counter", "histogram", "summary") or row.start == "always":
            for labels in row.label_sets(self._modes, self._batch_sizes, self._falls_back, self._phases):
                if labels or isinstance(family, Histogram | Sums):
                    family.labels(*labels)

    def _register(self, row: MetricSpec) -> Family:
        name, registry = PREFIX + row.name, self._registry
        match row.kind:
            case "counter":
                return Counter(name, row.help, row.labels, unit=row.unit, registry=registry)
            case "gauge":
                return Gauge(name, row.help, row.labels, unit=row.unit, registry=registry)
            case "info":
                return Info(name.removesuffix("_info"), row.help, row.labels, registry=registry)
            case "histogram":
                of_requests = row.buckets is REQUEST_BUCKETS
                bounds = request_buckets(self._timeout_seconds) if of_requests else row.buckets
                return Histogram(name, row.help, row.labels, row.unit, bounds or self._batch_sizes)
            case "summary":
                sums = Sums(row)
                registry.register(sums)
                return sums
