"""Launch-bound or kernel-bound: the index, its classes, and the batch at which kernels take over.

Imports nothing of ours but the other statistics; the service's advice and the sweep's report both use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from service.statistics.intervals import Interval

Bound = Literal["launch-bound", "balanced", "kernel-bound"]

LAUNCH_BOUND_BELOW = 0.2
KERNEL_BOUND_FROM = 0.5

_ORDER: tuple[Bound, ...] = ("launch-bound", "balanced", "kernel-bound")


@dataclass(frozen=True, slots=True)
class Crossover:
    """The batch at which kernels take as long as dispatch. `where`: `at`, outside what was measured, or
    `several` such batches.
    """

    where: Literal["at", "below", "above", "several", "unknown"]
    batch: float | None


@dataclass(frozen=True, slots=True)
class CrossoverSpan:
    """A crossover and the ends of its interval, each of which can lie outside what was measured."""

    typical: Crossover
    earliest: Crossover
    latest: Crossover


def device_bound_index(kernel_seconds: float | None, dispatch_seconds: float | None) -> float | None:
    """Kernel / (kernel + dispatch), of sums over requests; None where either is unknown.

    TaxBreak's HDBI, arXiv:2603.12465.
    """
    if kernel_seconds is None or dispatch_seconds is None or kernel_seconds + dispatch_seconds <= 0:
        return None
    return kernel_seconds / (kernel_seconds + dispatch_seconds)


def bound(index: float | None) -> Bound | None:
    """The class of an index: below 0.2 launch-bound, from 0.5 kernel-bound, balanced between."""
    if index is None:
        return None
    if index < LAUNCH_BOUND_BELOW:
        return "launch-bound"
    return "kernel-bound" if index >= KERNEL_BOUND_FROM else "balanced"


def bounds_within(index: Interval) -> tuple[Bound, ...]:
    """The classes that an index's interval touches, launch-bound first."""
    low, high = bound(max(0.0, index.low)), bound(min(1.0, index.high))
    if low is None or high is None:
        return ()
    return _ORDER[_ORDER.index(low) : _ORDER.index(high) + 1]


def bound_in_words(index: Interval) -> str:
    """One class where the whole interval lies in it, else 'undecided between balanced and kernel-bound'."""
    classes = bounds_within(index)
    if len(classes) == 1:
        return classes[0]
    return f"undecided between {', '.join(classes[:-1])} and {classes[-1]}"


def crossover(index_by_batch: Mapping[int, float]) -> Crossover:
    """Where a mode's device-bound index reaches 0.5, that is kernel = dispatch.

    Between the two measured batches around it, the index is taken as linear in ln(batch). `below`: the
    smallest batch is past it already; `above`: the largest has not reached it; `several`: a larger batch lies
    below it again.
    """
    batches = sorted(index_by_batch)
    if not batches:
        return Crossover("unknown", None)
    past = [index_by_batch[batch] >= KERNEL_BOUND_FROM for batch in batches]
    if past != sorted(past):
        return Crossover("several", None)
    return _last_crossing(batches, index_by_batch)


def _last_crossing(batches: Sequence[int], index_by_batch: Mapping[int, float]) -> Crossover:
    """Past which batch the index stays above 0.5, whatever it does before."""
    if index_by_batch[batches[-1]] < KERNEL_BOUND_FROM:
        return Crossover("above", float(batches[-1]))
    for small, large in reversed(list(pairwise(batches))):
        low, high = index_by_batch[small], index_by_batch[large]
        if low < KERNEL_BOUND_FROM:
            share = (KERNEL_BOUND_FROM - low) / (high - low)
            return Crossover("at", small * (large / small) ** share)
    return Crossover("below", float(batches[0]))


def _first_crossing(batches: Sequence[int], index_by_batch: Mapping[int, float]) -> Crossover:
    """At which batch the index first reaches 0.5, whatever it does behind."""
    reached = [number for number, batch in enumerate(batches) if index_by_batch[batch] >= KERNEL_BOUND_FROM]
    return _last_crossing(batches[: reached[0] + 1] if reached else batches, index_by_batch)


def crossover_span(index_by_batch: Mapping[int, Interval]) -> CrossoverSpan:
    """The crossover with its interval: from the first at the high ends of the indices to the last at the low
    ones.
    """
    batches = sorted(index_by_batch)
    if not batches:
        unknown = Crossover("unknown", None)
        return CrossoverSpan(unknown, unknown, unknown)
    values, highs, lows = (
        {batch: getattr(index, end) for batch, index in index_by_batch.items()}
        for end in ("value", "high", "low")
    )
    return CrossoverSpan(crossover(values), _first_crossing(batches, highs), _last_crossing(batches, lows))
