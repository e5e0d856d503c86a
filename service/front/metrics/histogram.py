"""A histogram whose exposition is cached as text: the library's takes 3 µs per sample at every scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Protocol

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from service.front.metrics.exemplars import written

Labels = tuple[str, ...]


class Observe(Protocol):
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
        for place, exemplar in self.exemplars.items():
            lines[place] += written(exemplar)
        return plain, "\n".join(lines) + "\n"


class CachedHistogram(Collector):
    """A classic histogram for one thread. Values are not negative; `bounds` rise, and +Inf is added."""

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

    def labels(self, *values: str) -> Observe:
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
            (*bucket, child.exemplars[place]) if place in child.exemplars else bucket
            for place, bucket in enumerate(counted)
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
