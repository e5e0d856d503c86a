"""Dispatch as an interval, the kernel share that follows, its classes, and a decode step's roofline."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import sqrt
from typing import Literal, NamedTuple, get_args

from service.records import SampleCounts
from service.statistics.intervals import Interval, mean_interval

CLASSES = 0.10
"""Of either part's samples, this many may be taken for the other's: the bound of the selftest's rows with
injected work. What a machine's own selftest leaves open beyond it is added (docs/method.md).
"""

RATE = 0.03
"""By so much sampling itself may shift a share, at 1,000 samples a second and fewer: the
most that two processors showed between that rate and none.
"""


class LeftOpen(NamedTuple):
    """What samples may get wrong, however many there are. The two are added: each says nothing of the other.

    `classes` of either part's samples may be taken for the other's; `rate` is how far sampling itself may
    shift a share, in points of that share.
    """

    classes: float
    rate: float


PROVED = LeftOpen(CLASSES, RATE)
"""What a selftest that passes leaves open."""

UNPROVED = LeftOpen(2 * CLASSES, 2 * RATE)
"""What is left open on a machine that no selftest stands for. Twice is a convention: nothing is measured
there, and an interval may not be narrower without a selftest than with one.
"""

MOST_UNCLASSIFIED = 0.2
"""Of the samples that are not the system's. A share is of those that have a class: where more than so many
have none, which is what an unproved machine may take for the other part, no value is told.
"""

MOST_SYSTEM = 0.5
"""Of all samples: a step that is in system calls for longer waits, or has its memory paged in, and what
remains says nothing of that time.
"""

NO_SHARE = "too few samples are in a kernel or in the host's code"

_Z = 1.959964
"""Of the standard normal distribution, for 95 %."""


class DispatchShare(NamedTuple):
    """Of steps' wall time; [low, high] holds the truth."""

    value: float
    low: float
    high: float


@lru_cache(maxsize=1024)
def dispatch_share(counts: SampleCounts, left_open: LeftOpen = UNPROVED) -> DispatchShare | None:
    """From the numbers of samples on either side; the unclassified may be of either, the system's are divided
    like the others.

    The interval is Wilson's at 95 %, its low end with the unclassified on the kernels' side, its high end
    with them on the host's, widened by `widened`. None without a sample of kernel or host, where more than
    MOST_UNCLASSIFIED are of neither, and where more than MOST_SYSTEM are the system's.
    """
    kernel, host, unclassified = counts.kernel, counts.host, counts.unclassified
    samples = kernel + host + unclassified
    if not kernel + host or unclassified > MOST_UNCLASSIFIED * samples:
        return None
    if counts.system > MOST_SYSTEM * counts.total:
        return None
    low, _ = _wilson(host, samples)
    _, high = _wilson(host + unclassified, samples)
    return DispatchShare(host / (kernel + host), *widened(low, high, left_open))


def widened(low: float, high: float, left_open: LeftOpen = UNPROVED) -> tuple[float, float]:
    """The ends of a share of dispatch by samples, made wide enough for what is `left_open`.

    Of a true share H at least H · (1 − c) − r is seen as dispatch, at most H + (1 − H) · c + r; solved for H.
    """
    classes, rate = left_open
    if classes >= 1:
        return 0.0, 1.0
    return max(0.0, (low - rate - classes) / (1 - classes)), min(1.0, (high + rate) / (1 - classes))


def _wilson(found: int, samples: int) -> tuple[float, float]:
    """The score interval of a share (Wilson 1927): it holds where none or all were found, too."""
    share, z2 = found / samples, _Z * _Z
    centre = (share + z2 / (2 * samples)) / (1 + z2 / samples)
    half = _Z * sqrt(share * (1 - share) / samples + z2 / (4 * samples**2)) / (1 + z2 / samples)
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Split:
    """Dispatch and kernel of the same steps, in seconds; [low, high] is the interval of the dispatch.

    Where dispatch is estimated, kernel is what it leaves of the wall time: their sum is exact, and what one
    has more the other has less. Measured dispatch has low = high = dispatch.
    """

    dispatch: float
    kernel: float
    low: float
    high: float

    def index_at(self, dispatch: float) -> float:
        """The device-bound index if dispatch was `dispatch`: 1 − dispatch / (sum of both), in [0, 1]."""
        return min(1.0, max(0.0, 1.0 - dispatch / (self.dispatch + self.kernel)))


def index_interval(rounds: Sequence[Split]) -> Interval | None:
    """The device-bound index of the sums over `rounds`, with an interval that spans both of its errors.

    With h the half width of the t interval of the rounds' indices it is [index at dispatch's high end − h,
    index at its low end + h], cut to [0, 1]. The two are added, not combined as squares: the estimate's error
    is the same in every round and does not average out. All of [0, 1] with a single round. None without
    rounds, or where nothing was measured in one.
    """
    if not rounds or any(split.dispatch + split.kernel <= 0 for split in rounds):
        return None
    spread = mean_interval([split.index_at(split.dispatch) for split in rounds])
    half = spread.high - spread.value
    both = Split(*(sum(getattr(split, end) for split in rounds) for end in Split.__slots__))
    low, high = both.index_at(both.high) - half, both.index_at(both.low) + half
    return Interval(both.index_at(both.dispatch), max(0.0, low), min(1.0, high), len(rounds))


Bound = Literal["launch-bound", "balanced", "kernel-bound"]

KERNEL_BOUND_FROM = 0.5
_EDGES = (0.2, KERNEL_BOUND_FROM)
_ORDER: tuple[Bound, ...] = get_args(Bound)


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
    return None if index is None else _ORDER[bisect_right(_EDGES, index)]


def bounds_within(index: Interval) -> tuple[Bound, ...]:
    """The classes that an index's interval touches, launch-bound first."""
    return _ORDER[bisect_right(_EDGES, index.low) : bisect_right(_EDGES, index.high) + 1]


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


@dataclass(frozen=True, slots=True)
class Roofline:
    """One decode step under its roof.

    `attained` is the least that it moves over its kernel time, bytes per second, and `share` is `attained`
    over the bandwidth, each with the interval that the kernel time leaves. A share above 1 says that the
    bytes came from a faster memory than the one that was measured (caches). A low share says that something
    else than memory bounds the kernels: arithmetic, launches between small kernels, or latency.
    """

    attained: Interval
    share: Interval


def decode_bytes(step_bytes: Mapping[str, float], rows: float, positions: float) -> float:
    """Bytes that a decode step of `rows` sequences must move, each of which attends to `positions`.

    weights + rows · (positions · cache_per_position + activations_per_row), by the keys of `step_bytes`,
    which are the fields of `records.StepBytes`. Weights are read once for the whole batch, keys and
    values once per sequence, and what enters and leaves a matrix product once per row: the memory term of
    Pope et al., "Efficiently Scaling Transformer Inference" (arXiv:2211.05102, section 2), with activations
    added. A lower bound: padding of batch and cache, and what is written only for the next kernel to read
    (norms, rotations), are left out.
    """
    per_row = positions * step_bytes["cache_per_position"] + step_bytes["activations_per_row"]
    return step_bytes["weights"] + rows * per_row


def decode_flops(step_flops: Mapping[str, float], rows: float, positions: float) -> float:
    """Floating-point operations of a decode step of `rows` sequences, each of which attends to `positions`.

    rows · (per_row + positions · per_position), by the keys of `step_flops`, the fields of
    `records.StepFlops`: the compute term of Pope et al., section 2, with attention added.
    """
    return rows * (step_flops["per_row"] + positions * step_flops["per_position"])


def attended_positions(prompt_tokens: float, steps: float) -> float:
    """Cache positions that a decode step attends to, the mean over `steps` steps after a prompt.

    The first writes at position `prompt_tokens` and attends to one more; each further one to one more again.
    """
    return prompt_tokens + (steps + 1) / 2


def roofline(bytes_per_step: float, kernel_seconds: Interval, bytes_per_second: float) -> Roofline | None:
    """`bytes_per_step` in `kernel_seconds` against a bandwidth of `bytes_per_second`.

    Williams, Waterman and Patterson, "Roofline" (doi:10.1145/1498765.1498785), of which decode is the slanted
    part: some operations per byte. None where there is no kernel time. An interval of kernel time that
    reaches 0 leaves the share without an upper end.
    """
    if kernel_seconds.value <= 0 or bytes_per_second <= 0:
        return None
    ends = (kernel_seconds.value, kernel_seconds.high, kernel_seconds.low)
    rates = [bytes_per_step / end if end > 0 else float("inf") for end in ends]
    attained = Interval(rates[0], rates[1], rates[2], kernel_seconds.samples)
    shares = [rate / bytes_per_second for rate in rates]
    return Roofline(attained, Interval(shares[0], shares[1], shares[2], attained.samples))
