"""A histogram whose exposition is cached as text: the library's takes 3 µs per sample at every scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import inf

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class _HistogramChild:
    """One label set: a count per bucket and the sum, and its lines, cached until it changes."""

    __slots__ = ("_bounds", "_lines", "_prefixes", "counts", "total")

    def __init__(self, bounds: list[float], prefixes: list[str]) -> None:
        self._bounds = bounds
        self._prefixes = prefixes
        self.counts = [0] * len(bounds)
        self.total = 0.0
        self._lines: str | None = None

    def observe(self, value: float) -> None:
        """Count `value` in the first bucket whose bound is not below it."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value
        self._lines = None

    def cumulative(self) -> list[int]:
        """Per bucket, how many values were not above its bound."""
        reached = 0
        counts = []
        for count in self.counts:
            reached += count
            counts.append(reached)
        return counts

    def lines(self) -> str:
        """Its samples as both formats write them."""
        if self._lines is None:
            counts = self.cumulative()
            values = [*(f"{count}.0" for count in counts), f"{counts[-1]}.0", floatToGoString(self.total)]
            self._lines = "".join(
                f"{prefix}{value}\n" for prefix, value in zip(self._prefixes, values, strict=True)
            )
        return self._lines


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

    def labels(self, *values: str) -> Callable[[float], None]:
        """How to observe a value, in the unit of this histogram, under these labels."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = _HistogramChild(self._bounds, self._prefixes(values))
        return child.observe

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The family as the library sees it; without samples within `heads_only`."""
        family = HistogramMetricFamily(self.name, self._text, labels=self._label_names, unit=self._unit)
        if not self._heads_only:
            for labels, child in self._children.items():
                buckets = zip(map(floatToGoString, self._bounds), map(float, child.cumulative()), strict=True)
                family.add_metric(labels, list(buckets), child.total)
        yield family

    @contextmanager
    def heads_only(self) -> Iterator[None]:
        """Within: a library's encoder writes the lines above the samples, and no sample."""
        self._heads_only = True
        try:
            yield
        finally:
            self._heads_only = False

    def insert(self, exposition: str) -> str:
        """`exposition`, written within `heads_only`, with the samples where they belong."""
        for head in (f"# UNIT {self.name} {self._unit}\n", f"# TYPE {self.name} histogram\n"):
            before, found, after = exposition.partition(head)
            if found:
                return "".join((before, found, *(child.lines() for child in self._children.values()), after))
        return exposition

    def _prefixes(self, values: Labels) -> list[str]:
        """What stands before each value, in the library's order: buckets, count, sum; labels by name."""

        def prefix(suffix: str, **more: str) -> str:
            given = dict(zip(self._label_names, map(_escaped, values), strict=True)) | more
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(given.items()))
            return f"{self.name}_{suffix}{{{labels}}} " if labels else f"{self.name}_{suffix} "

        buckets = [prefix("bucket", le=floatToGoString(bound)) for bound in self._bounds]
        return [*buckets, prefix("count"), prefix("sum")]


def exposed(histograms: Iterable[CachedHistogram], encode: Callable[[], bytes]) -> bytes:
    """What `encode` makes of a registry with `histograms` in it, their samples from cached text."""
    histograms = list(histograms)
    with ExitStack() as stack:
        for histogram in histograms:
            stack.enter_context(histogram.heads_only())
        exposition = encode().decode()
    for histogram in histograms:
        exposition = histogram.insert(exposition)
    return exposition.encode()


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
