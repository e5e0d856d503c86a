"""Typical latencies over rounds; what is compared and chosen by them is in `service.statistics.choice`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from service.statistics.choice import Rounds
from service.statistics.intervals import Interval, mean_interval


def typical(rounds: Rounds) -> Interval:
    """The geometric mean of the rounds' medians with its t interval: exp(mean ln m ± t(n − 1) · s / √n).

    Geometric, so that ratios of these values are the speed-ups of `compare`.
    """
    logs = mean_interval([math.log(value) for value in rounds.values()])
    high = math.exp(logs.high) if logs.high < 700 else math.inf
    return Interval(math.exp(logs.value), math.exp(logs.low), high, logs.samples)


def slowest_over_fastest(by_mode: Mapping[str, Rounds]) -> float:
    """Spread of the modes: the slowest's typical latency over the fastest's."""
    values: Sequence[float] = [typical(rounds).value for rounds in by_mode.values()]
    return max(values) / min(values)
