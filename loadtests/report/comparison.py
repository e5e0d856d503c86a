"""Statistics over rounds: speed-ups with verdicts, the control's noise, typical latencies, and payback.

The rule of verdicts and of the mode to ship is in `service.statistics.choice`, the device-bound index and its
crossover in `service.statistics.boundedness`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.statistics import choice
from service.statistics.choice import Choice as ModeChoice
from service.statistics.choice import Rounds, Word, paired
from service.statistics.intervals import Interval, mean_interval, paired_ratio

__all__ = [
    "Comparison",
    "ModeChoice",
    "Rounds",
    "Word",
    "choose",
    "compare",
    "noise_factor",
    "paired",
    "payback_requests",
    "slowest_over_fastest",
    "typical",
]


@dataclass(frozen=True, slots=True)
class Comparison(choice.Comparison):
    """A comparison, and the `noise` of the control cell that is shown beside it and decides nothing."""

    noise: float


def noise_factor(baseline: Rounds, control: Rounds | None) -> float:
    """The ratio that this machine shows between two runs of the same mode: shown, not a verdict's business.

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
    """`choice.compare`, with the control's noise beside it."""
    found = choice.compare(baseline, candidate)
    return Comparison(found.speedup, found.word, noise)


def choose(by_mode: Mapping[str, Rounds], noise: float = 1.0) -> ModeChoice | None:
    """`choice.choose`: the control's `noise` does not matter to it."""
    del noise
    return choice.choose(by_mode)


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
