"""Statistics over rounds: speed-ups with intervals and verdicts, noise, the mode to ship, and payback.

Pure functions over durations in seconds. Every formula is in the docstring of its function; the
device-bound index and its crossover are in `service.statistics.boundedness`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from loadtests.plan.cells import MINIMUM_ROUNDS
from service.statistics.intervals import Interval, mean_interval, paired_ratio

Word = Literal["faster", "slower", "no detectable difference", "undecided"]
Rounds = Mapping[int, float]
"""By round, the median latency of a cell's requests in it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A speed-up, its verdict `word`, and the noise band [1 / noise, noise] it was compared with."""

    speedup: Interval
    word: Word
    noise: float


@dataclass(frozen=True, slots=True)
class ModeChoice:
    """The mode to ship, the one with the shortest latency, and those that do not differ from the latter."""

    ship: str
    fastest: str
    tied: tuple[str, ...]


def paired(first: Rounds, second: Rounds) -> tuple[list[float], list[float]]:
    """The values of the rounds that both have, round by round."""
    shared = sorted(first.keys() & second.keys())
    return [first[number] for number in shared], [second[number] for number in shared]


def noise_factor(baseline: Rounds, control: Rounds | None) -> float:
    """The ratio that this machine shows between two runs of the same mode.

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
    """The speed-up baseline / candidate, with its verdict.

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


def choose(by_mode: Mapping[str, Rounds], noise: float = 1.0) -> ModeChoice | None:
    """Which mode to ship; `by_mode` in the order of the ladder, the simplest, the baseline, first.

    The fastest is the one with the smallest mean log latency over the rounds. Modes that it is not `faster`
    than by `compare` are tied with it. The simplest of these is to be shipped, if it is the baseline or
    `faster` than the baseline. None with fewer than 8 rounds, which decide nothing.
    """
    fastest = min(by_mode, key=lambda mode: typical(by_mode[mode]).value)
    compared = {mode: compare(rounds, by_mode[fastest], noise) for mode, rounds in by_mode.items()}
    if any(comparison.word == "undecided" for comparison in compared.values()):
        return None
    tied = [mode for mode in by_mode if mode == fastest or compared[mode].word != "faster"]
    baseline = next(iter(by_mode))
    ship = next(
        mode
        for mode in tied
        if mode in (baseline, fastest) or compare(by_mode[baseline], by_mode[mode], noise).word == "faster"
    )
    return ModeChoice(ship=ship, fastest=fastest, tied=tuple(mode for mode in tied if mode != fastest))


def typical(rounds: Rounds) -> Interval:
    """The geometric mean of the rounds' medians with its t interval: exp(mean ln m ± t(n − 1) · s / √n).

    Geometric, so that ratios of these values are the speed-ups of `compare`.
    """
    logs = mean_interval([math.log(value) for value in rounds.values()])
    high = math.exp(logs.high) if logs.high < 700 else math.inf
    return Interval(math.exp(logs.value), math.exp(logs.low), high, logs.samples)


def payback_requests(
    warmup_seconds: float | None,
    baseline_warmup_seconds: float | None,
    baseline_seconds: float,
    seconds: float,
) -> int | None:
    """Requests until a mode's longer warm-up is paid back.

    ceil((warm-up − the baseline's warm-up) / (the baseline's seconds per request − the mode's)), at least 0.
    None: never, because a request is not faster, or unknown, because a warm-up is.
    """
    if warmup_seconds is None or baseline_warmup_seconds is None or seconds >= baseline_seconds:
        return None
    return max(0, math.ceil((warmup_seconds - baseline_warmup_seconds) / (baseline_seconds - seconds)))


def slowest_over_fastest(by_mode: Mapping[str, Rounds]) -> float:
    """Spread of the modes: the slowest's typical latency over the fastest's."""
    values: Sequence[float] = [typical(rounds).value for rounds in by_mode.values()]
    return max(values) / min(values)
