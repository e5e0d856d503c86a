"""What measured rounds say: speed-ups with intervals and words, noise, bounds, crossover, and payback.

Pure functions over durations in seconds. Every formula stands in the docstring of its function.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from loadtests.plan import MINIMUM_ROUNDS
from service.statistics import Interval, mean_interval, paired_ratio

Word = Literal["faster", "slower", "no detectable difference", "undecided"]
Bound = Literal["launch-bound", "balanced", "kernel-bound"]

LAUNCH_BOUND_BELOW = 0.2
KERNEL_BOUND_FROM = 0.5

Rounds = Mapping[int, float]
"""By round, the median latency of a cell's requests in it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A speed-up, what it may be called, and the noise band [1 / noise, noise] it was judged against."""

    speedup: Interval
    word: Word
    noise: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The mode to ship, the one with the shortest latency, and those that cannot be told from the latter."""

    ship: str
    fastest: str
    tied: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Crossover:
    """The batch at which kernels take as long as dispatch. `where`: `at`, or outside what was measured."""

    where: Literal["at", "below", "above", "unknown"]
    batch: float | None


def paired(first: Rounds, second: Rounds) -> tuple[list[float], list[float]]:
    """The values of the rounds that both have, round by round."""
    shared = sorted(first.keys() & second.keys())
    return [first[number] for number in shared], [second[number] for number in shared]


def noise_factor(baseline: Rounds, control: Rounds | None) -> float:
    """How large a ratio this machine shows between two runs of the same mode.

    With [low, high] the 95 % interval of the paired ratio baseline / control, it is
    exp(max(|ln low|, |ln high|)) ≥ 1: symmetric, because which of the two is called the control is arbitrary.
    1 without a control; infinite where there are fewer than two shared rounds.
    """
    if control is None:
        return 1.0
    first, second = paired(baseline, control)
    if len(first) < 2:
        return math.inf
    ratio = paired_ratio(first, second)
    return math.exp(max(abs(math.log(ratio.low)), abs(math.log(ratio.high))))


def compare(baseline: Rounds, candidate: Rounds, noise: float = 1.0) -> Comparison:
    """The speed-up baseline / candidate, in words.

    With b and c the medians of one round, d = ln(b / c) per shared round: the speed-up is exp(mean d), its
    95 % interval exp(mean d ± t(n − 1) · s / √n). It is `faster` (`slower`) if the interval lies wholly above
    (below) 1 *and* the speed-up itself lies outside the noise band [1 / noise, noise]; `undecided` below 8
    shared rounds; else there is `no detectable difference`. Raises ValueError without a shared round.
    """
    speedup = paired_ratio(*paired(baseline, candidate))
    if speedup.samples < MINIMUM_ROUNDS:
        return Comparison(speedup, "undecided", noise)
    real = speedup.excludes_one and abs(math.log(speedup.value)) > math.log(noise)
    word: Word = "no detectable difference" if not real else ("faster" if speedup.value > 1 else "slower")
    return Comparison(speedup, word, noise)


def choose(by_mode: Mapping[str, Rounds], noise: float = 1.0) -> Choice | None:
    """Which mode to ship; `by_mode` in the order of the ladder, the simplest, the baseline, first.

    The fastest is the one with the smallest mean log latency over the rounds. Modes that it is not `faster`
    than by `compare` are tied with it. The simplest of these is to be shipped, if it is the baseline or
    `faster` than the baseline. None with fewer than 8 rounds, where nothing can be said.
    """
    fastest = min(by_mode, key=lambda mode: typical(by_mode[mode]).value)
    compared = {mode: compare(rounds, by_mode[fastest], noise) for mode, rounds in by_mode.items()}
    if any(comparison.word == "undecided" for comparison in compared.values()):
        return None
    alike = [mode for mode in by_mode if mode == fastest or compared[mode].word != "faster"]
    baseline = next(iter(by_mode))
    ship = next(
        mode
        for mode in alike
        if mode in (baseline, fastest) or compare(by_mode[baseline], by_mode[mode], noise).word == "faster"
    )
    return Choice(ship=ship, fastest=fastest, tied=tuple(mode for mode in alike if mode != fastest))


def typical(rounds: Rounds) -> Interval:
    """The geometric mean of the rounds' medians with its t interval: exp(mean ln m ± t(n − 1) · s / √n).

    Geometric, so that ratios of these values are the speed-ups of `compare`.
    """
    logs = mean_interval([math.log(value) for value in rounds.values()])
    high = math.exp(logs.high) if logs.high < 700 else math.inf
    return Interval(math.exp(logs.value), math.exp(logs.low), high, logs.samples)


def device_bound_index(kernel_seconds: float | None, dispatch_seconds: float | None) -> float | None:
    """Kernel / (kernel + dispatch), of sums over requests (TaxBreak's HDBI); None where one is not known."""
    if kernel_seconds is None or dispatch_seconds is None or kernel_seconds + dispatch_seconds <= 0:
        return None
    return kernel_seconds / (kernel_seconds + dispatch_seconds)


def bound(index: float | None) -> Bound | None:
    """The index in words: below 0.2 launch-bound, from 0.5 kernel-bound, balanced between."""
    if index is None:
        return None
    if index < LAUNCH_BOUND_BELOW:
        return "launch-bound"
    return "kernel-bound" if index >= KERNEL_BOUND_FROM else "balanced"


def crossover(index_by_batch: Mapping[int, float]) -> Crossover:
    """Where a mode's device-bound index reaches 0.5, that is kernel = dispatch.

    Between the two measured batches around it, the index is taken as linear in ln(batch). `below` and `above`
    say that the smallest batch is past it already, or the largest not yet there.
    """
    batches = sorted(index_by_batch)
    if not batches:
        return Crossover("unknown", None)
    if index_by_batch[batches[0]] >= KERNEL_BOUND_FROM:
        return Crossover("below", float(batches[0]))
    for small, large in pairwise(batches):
        low, high = index_by_batch[small], index_by_batch[large]
        if high >= KERNEL_BOUND_FROM:
            share = (KERNEL_BOUND_FROM - low) / (high - low)
            return Crossover("at", small * (large / small) ** share)
    return Crossover("above", float(batches[-1]))


def payback_requests(
    warmup_seconds: float | None,
    baseline_warmup_seconds: float | None,
    baseline_seconds: float,
    seconds: float,
) -> int | None:
    """Requests until a mode's longer warm-up has paid back.

    ceil((warm-up − the baseline's warm-up) / (the baseline's seconds per request − the mode's)), at least 0.
    None: never, because a request is not faster, or not known, because a warm-up is not.
    """
    if warmup_seconds is None or baseline_warmup_seconds is None or seconds >= baseline_seconds:
        return None
    return max(0, math.ceil((warmup_seconds - baseline_warmup_seconds) / (baseline_seconds - seconds)))


def together(by_mode: Mapping[str, Rounds]) -> float:
    """How far apart modes are: the slowest's typical latency over the fastest's."""
    values: Sequence[float] = [typical(rounds).value for rounds in by_mode.values()]
    return max(values) / min(values)
