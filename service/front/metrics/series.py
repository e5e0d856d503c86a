"""The catalogue's rows as Prometheus series, and their exposition."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import inf
from time import monotonic
from typing import Protocol

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
from prometheus_client.core import HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from service.front.metrics.catalogue import CATALOGUE, PREFIX, REQUEST_BUCKETS, MetricSpec, request_buckets
from service.front.request_timing import RequestTiming

Labels = tuple[str, ...]

Write = Callable[[float], None]

Add = Callable[[float, int], None]

KEPT_SECONDS = 1.0
"""How long a rendered page is answered again: however many scrape, the event loop renders once a second."""


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
        """The current sums."""
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
        """`count` more that come to `total` together."""
        self.total += total
        self.count += count


class _Observe(Protocol):
    """Observes a value, so many times."""

    def __call__(self, value: float, times: int = 1) -> None: ...


class _HistogramChild:
    """One label set: counts, sum and exemplars of its buckets, and its lines, cached until it changes."""

    __slots__ = ("_bounds", "_lines", "_prefixes", "counts", "exemplars", "total")

    def __init__(self, bounds: list[float], prefixes: list[str]) -> None:
        self._bounds = bounds
        self._prefixes = prefixes
        self.counts = [0] * len(bounds)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        self._lines: tuple[str, str] | None = None

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, so many times, in the first bucket whose bound is not below it."""
        self.counts[bisect_left(self._bounds, value)] += times
        self.total += value * times
        self._lines = None

    def exemplify(self, exemplar: Exemplar) -> None:
        """Have `exemplar` stand by the bucket that its value belongs to, which does not count it."""
        self.exemplars[bisect_left(self._bounds, exemplar.value)] = exemplar
        self._lines = None

    def cumulative(self) -> list[int]:
        """Per bucket, how many values were not above its bound."""
        reached = 0
        counts = []
        for count in self.counts:
            reached += count
            counts.append(reached)
        return counts

    def lines(self, exemplars: bool) -> str:
        """Its samples as both formats write them; with `exemplars` as OpenMetrics alone does."""
        if self._lines is None:
            self._lines = self._written()
        return self._lines[exemplars]

    def _written(self) -> tuple[str, str]:
        """The lines without and with exemplars."""
        counts = self.cumulative()
        values = [*(f"{count}.0" for count in counts), f"{counts[-1]}.0", floatToGoString(self.total)]
        lines = [f"{prefix}{value}" for prefix, value in zip(self._prefixes, values, strict=True)]
        plain = "\n".join(lines) + "\n"
        if not self.exemplars:
            return plain, plain
        for index, exemplar in self.exemplars.items():
            lines[index] += written(exemplar)
        return plain, "\n".join(lines) + "\n"


class CachedHistogram(Collector):
    """A classic histogram for one thread. Values are not negative; `bounds` rise, and +Inf is added.

    Its exposition is cached as text: the library's takes 3 µs per sample at every scrape.
    """

    def __init__(
        self, name: str, text: str, labels: Sequence[str], unit: str, bounds: Iterable[float]
    ) -> None:
        self.name = name
        self._text = text
        self._label_names = tuple(labels)
        self._unit = unit
        self._bounds = [*map(float, bounds), inf]
        self._children: dict[Labels, _HistogramChild] = {}
        self._heads_only = False

    def labels(self, *values: str) -> _Observe:
        """How to observe a value, in the unit of this histogram, under these labels."""
        return self._child(values).observe

    def exemplify(self, exemplar: Exemplar, *values: str) -> None:
        """Have `exemplar` stand by its bucket under these labels, in OpenMetrics; it is not observed."""
        self._child(values).exemplify(exemplar)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The family as the library sees it; without samples within `heads_only`."""
        family = HistogramMetricFamily(self.name, self._text, labels=self._label_names, unit=self._unit)
        if not self._heads_only:
            for labels, child in self._children.items():
                family.add_metric(labels, self._buckets(child), child.total)
        yield family

    @contextmanager
    def heads_only(self) -> Iterator[None]:
        """Within: a library's encoder writes the lines above the samples, and no sample."""
        self._heads_only = True
        try:
            yield
        finally:
            self._heads_only = False

    def insert(self, exposition: str, exemplars: bool) -> str:
        """`exposition`, written within `heads_only`, with the samples where they belong."""
        for head in (f"# UNIT {self.name} {self._unit}\n", f"# TYPE {self.name} histogram\n"):
            before, found, after = exposition.partition(head)
            if found:
                samples = (child.lines(exemplars) for child in self._children.values())
                return "".join((before, found, *samples, after))
        return exposition

    def _buckets(self, child: _HistogramChild) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
        counted = zip(map(floatToGoString, self._bounds), map(float, child.cumulative()), strict=True)
        return [
            (*bucket, child.exemplars[index]) if index in child.exemplars else bucket
            for index, bucket in enumerate(counted)
        ]

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
            return f"{self.name}_{suffix}{{{labels}}} " if labels else f"{self.name}_{suffix} "

        buckets = [prefix("bucket", le=floatToGoString(bound)) for bound in self._bounds]
        return [*buckets, prefix("count"), prefix("sum")]


def exposed(
    histograms: Iterable[CachedHistogram], encode: Callable[[], bytes], exemplars: bool = False
) -> bytes:
    """What `encode` makes of a registry with `histograms` in it, their samples from cached text.

    `exemplars`: `encode` writes OpenMetrics, the one format that has them.
    """
    histograms = list(histograms)
    with ExitStack() as stack:
        for histogram in histograms:
            stack.enter_context(histogram.heads_only())
        exposition = encode().decode()
    for histogram in histograms:
        exposition = histogram.insert(exposition, exemplars)
    return exposition.encode()


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


TRACE_LABEL = "trace_id"


def exemplar(trace: str, seconds: float, at: float) -> Exemplar:
    """A request of `seconds` that was recorded in `trace`, and ended `at` (seconds since the epoch)."""
    return Exemplar({TRACE_LABEL: trace}, seconds, round(at, 3))


def trace_of(timing: RequestTiming) -> str | None:
    """The id under which `GET /v1/traces/{id}` has this request's trace.

    None where it was not profiled, or its trace was not kept.
    """
    # An empty profile is of a trace that the disk did not take.
    return timing.job.id if timing.outcome.profile else None


def written(one: Exemplar) -> str:
    """What follows a bucket's value in OpenMetrics. A trace's id has nothing that needs an escape."""
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(one.labels.items()))
    return f" # {{{labels}}} {floatToGoString(one.value)} {one.timestamp}"


Family = Counter | Gauge | CachedHistogram | Info | Sums


class LabelledSeries:
    """The series with the same label values, each looked up by its name alone once it is known.

    A request writes thirty of them when a model call has emptied the caches, and then each object on the way
    to a number costs as much as the number.
    """

    def __init__(self, family_of: Callable[[str], Family], labels: Labels) -> None:
        self._family_of = family_of
        self._labels = labels
        self._writers: dict[str, Write] = {}
        self._adders: dict[str, Add] = {}

    def write(self, name: str, value: float) -> None:
        """As `Series.write`."""
        write = self._writers.get(name)
        if write is None:
            write = self._writers[name] = self._writer(name)
        write(value)

    def add(self, name: str, value: float, times: int) -> None:
        """To a summary `times` steps that come to `value` together, to a histogram `value` so many times."""
        add = self._adders.get(name)
        if add is None:
            family = self._family_of(name)
            assert isinstance(family, CachedHistogram | Sums)
            add = self._adders[name] = family.labels(*self._labels)
        add(value, times)

    def forget(self, name: str) -> None:
        """Its series is no more."""
        self._writers.pop(name, None)

    def _writer(self, name: str) -> Write:
        family, labels = self._family_of(name), self._labels
        if isinstance(family, Counter):
            return (family.labels(*labels) if labels else family).inc
        if isinstance(family, Gauge):
            return (family.labels(*labels) if labels else family).set
        if isinstance(family, CachedHistogram):
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
        """All series with these label values."""
        found = self._labelled.get(labels)
        if found is None:
            found = self._labelled[labels] = LabelledSeries(self._family, labels)
        return found

    def exemplify(self, name: str, exemplar: Exemplar, *labels: str) -> None:
        """Have `exemplar` stand by its bucket of a histogram, which does not count it."""
        family = self._family(name)
        assert isinstance(family, CachedHistogram)
        family.exemplify(exemplar, *labels)

    def remove(self, name: str, *labels: str) -> None:
        """Take one label set out of the exposition."""
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
        histograms = (family for family in self._families.values() if isinstance(family, CachedHistogram))
        open_metrics = content_type.startswith("application/openmetrics-text")
        return exposed(histograms, lambda: encode(self._registry), open_metrics)

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
                if labels or isinstance(family, CachedHistogram | Sums):
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
            histogram = CachedHistogram(name, row.help, row.labels, row.unit, bounds)
            registry.register(histogram)
            return histogram
        if row.kind == "info":
            return Info(name.removesuffix("_info"), row.help, row.labels, registry=registry)
        sums = Sums(row)
        registry.register(sums)
        return sums
