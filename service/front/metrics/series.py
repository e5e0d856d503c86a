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

from service.front.metrics.catalogue import CATALOGUE, PREFIX, REQUEST_BUCKETS, MetricSpec, request_buckets

TRACE_LABEL = "trace_id"

Labels = tuple[str, ...]

Write = Callable[[float], None]

Add = Callable[[float, int], None]

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
        self._sums: dict[Labels, _Sum] = {}

    def labels(self, *values: str) -> Add:
        """How to add what so many steps come to together, under these labels."""
        return self._sums.setdefault(values, _Sum()).add

    def collect(self) -> Iterator[SummaryMetricFamily]:
        row = self._row
        family = SummaryMetricFamily(PREFIX + row.name, row.help, labels=row.labels, unit=row.unit)
        for labels, found in self._sums.items():
            family.add_metric(labels, count_value=found.count, sum_value=found.total)
        yield family


class _Sum:
    """One label set of a summary."""

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def add(self, total: float, count: int) -> None:
        self.total += total
        self.count += count


class _HistogramChild:
    """One label set: counts, sum and exemplars of its buckets, and its lines, cached until it changes."""

    __slots__ = ("_bounds", "_lines", "_prefixes", "counts", "exemplars", "total")

    def __init__(self, bounds: list[float], prefixes: list[str]) -> None:
        self._bounds = bounds
        self._prefixes = prefixes
        self.counts = [0] * len(bounds)
        self.total = 0.0
        self.exemplars: dict[int, str] = {}
        self._lines: tuple[str, str] | None = None

    def observe(self, value: float) -> None:
        """Count `value` in the first bucket whose bound is not below it."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value
        self._lines = None

    def exemplify(self, value: float, text: str) -> None:
        """Put an exemplar at the bucket that `value` belongs to, which does not count it."""
        self.exemplars[bisect_left(self._bounds, value)] = text
        self._lines = None

    def lines(self, exemplars: bool) -> str:
        """Its samples, which both formats write alike; only OpenMetrics has `exemplars`."""
        if self._lines is None:
            self._lines = self._written({}), self._written(self.exemplars)
        return self._lines[exemplars]

    def _written(self, exemplars: dict[int, str]) -> str:
        counts = list(accumulate(self.counts))
        values = [*(f"{count}.0" for count in counts), f"{counts[-1]}.0", floatToGoString(self.total)]
        lines = [f"{prefix}{value}" for prefix, value in zip(self._prefixes, values, strict=True)]
        for index, text in exemplars.items():
            lines[index] += text
        return "\n".join(lines) + "\n"


class Histogram:
    """A classic histogram for one thread. Values are not negative; `bounds` rise, and +Inf is added.

    Its exposition is cached as text: the library's takes 3 µs per sample at every scrape.
    """

    def __init__(
        self, name: str, text: str, labels: Sequence[str], unit: str, bounds: Iterable[float]
    ) -> None:
        self._name = name
        self._text = text
        self._label_names = tuple(labels)
        self._unit = unit
        self._bounds = [*map(float, bounds), inf]
        self._children: dict[Labels, _HistogramChild] = {}

    def labels(self, *values: str) -> Write:
        """A function that observes a value, in the unit of this histogram, under these labels."""
        return self._child(values).observe

    def exemplify(self, trace: str, value: float, at: float, *values: str) -> None:
        """Have OpenMetrics show the request with this `trace`, which ended `at` (Unix time), at its bucket.

        Its `value` is not counted.
        """
        text = f' # {{{TRACE_LABEL}="{trace}"}} {floatToGoString(value)} {round(at, 3)}'
        self._child(values).exemplify(value, text)

    def exposition(self, open_metrics: bool) -> str:
        """All its lines, as the library writes them."""
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


class LabelledSeries:
    """The series with the same label values, looked up by name.

    A request writes thirty of them with cold CPU caches, where each object on the way costs as much as the
    number.
    """

    def __init__(self, family_of: Callable[[str], Family], labels: Labels) -> None:
        self._family_of = family_of
        self._labels = labels
        self._writers: dict[str, Write] = {}
        self._adders: dict[str, Add] = {}

    def write(self, name: str, value: float) -> None:
        write = self._writers.get(name)
        if write is None:
            write = self._writers[name] = self._writer(name)
        write(value)

    def add(self, name: str, value: float, times: int) -> None:
        """To a summary `times` steps that come to `value` together."""
        add = self._adders.get(name)
        if add is None:
            family = self._family_of(name)
            assert isinstance(family, Sums)
            add = self._adders[name] = family.labels(*self._labels)
        add(value, times)

    def forget(self, name: str) -> None:
        self._writers.pop(name, None)

    def _writer(self, name: str) -> Write:
        family, labels = self._family_of(name), self._labels
        if isinstance(family, Counter):
            return (family.labels(*labels) if labels else family).inc
        if isinstance(family, Gauge):
            return (family.labels(*labels) if labels else family).set
        if isinstance(family, Histogram):
            return family.labels(*labels)
        assert isinstance(family, Info)
        child = family.labels(*labels)
        return lambda _: child.info({})


class Series:
    """The catalogue's rows as series: registered when due, children cached, unknown names refused."""

    def __init__(
        self, registry: CollectorRegistry, modes: list[str], batch_sizes: list[int], timeout_seconds: float
    ) -> None:
        disable_created_metrics()
        self._registry = registry
        self._modes = modes
        self._batch_sizes = batch_sizes
        self._timeout_seconds = timeout_seconds
        self._pages: dict[str, tuple[float, bytes]] = {}
        self._rows = {row.name: row for row in CATALOGUE}
        self._families: dict[str, Family] = {}
        self._labelled: dict[Labels, LabelledSeries] = {}
        self._falls_back = False

    def start(self, *due: str) -> None:
        """Register the rows that start at one of `due`, every label set at 0."""
        if "cuda" in due and not self._falls_back:
            self._falls_back = True
            for name, family in self._families.items():
                self._fill(self._rows[name], family)
        for row in CATALOGUE:
            if row.start in due:
                self._family(row.name)

    def write(self, name: str, value: float, *labels: str) -> None:
        """Add to a counter, set a gauge, observe in a histogram; 1 makes an info appear."""
        self.under(*labels).write(name, value)

    def under(self, *labels: str) -> LabelledSeries:
        found = self._labelled.get(labels)
        if found is None:
            found = self._labelled[labels] = LabelledSeries(self._family, labels)
        return found

    def exemplify(self, name: str, trace: str, value: float, at: float, *labels: str) -> None:
        family = self._family(name)
        assert isinstance(family, Histogram)
        family.exemplify(trace, value, at, *labels)

    def remove(self, name: str, *labels: str) -> None:
        family = self._family(name)
        assert isinstance(family, Counter | Gauge | Info)
        family.remove(*labels)
        self.under(*labels).forget(name)

    def render(self, accept: str, fresh: bool) -> tuple[bytes, str]:
        """The exposition in the format that an Accept header requests, and its content type.

        Unless it must be `fresh`, it may be up to KEPT_SECONDS old.
        """
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
            for labels in row.label_sets(self._modes, self._batch_sizes, self._falls_back):
                if labels or isinstance(family, Histogram | Sums):
                    family.labels(*labels)

    def _register(self, row: MetricSpec) -> Family:
        name = PREFIX + row.name
        registry = self._registry
        if row.kind == "counter":
            return Counter(name, row.help, row.labels, unit=row.unit, registry=registry)
        if row.kind == "gauge":
            return Gauge(name, row.help, row.labels, unit=row.unit, registry=registry)
        if row.kind == "histogram":
            bounds = row.buckets or self._batch_sizes
            if row.buckets is REQUEST_BUCKETS:
                bounds = request_buckets(self._timeout_seconds)
            return Histogram(name, row.help, row.labels, row.unit, bounds)
        if row.kind == "info":
            return Info(name.removesuffix("_info"), row.help, row.labels, registry=registry)
        sums = Sums(row)
        registry.register(sums)
        return sums
