"""Interleaving: every arm once per round in a fresh seeded order, so that drift meets all alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TypeVar

from service.statistics.intervals import Interval, median_interval

Key = TypeVar("Key")
Say = Callable[[str], None]
"""Told what is going on, often enough that nobody wonders."""


def in_rounds(
    arms: Mapping[Key, Callable[[], float]], count: int, seed: str, say: Say
) -> dict[Key, list[float]]:
    """What each arm returned, round by round."""
    found: dict[Key, list[float]] = {key: [] for key in arms}
    for number in range(count):
        say(f"round {number + 1} of {count}")
        keys = list(arms)
        Random(f"{seed}/{number}").shuffle(keys)
        for key in keys:
            found[key].append(arms[key]())
    return found


def paired_median_ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Median of the rounds' ratios `above / below`, with its order-statistic interval.

    Unlike a t interval it does not widen because one round was disturbed. Raises ValueError for unequal
    lengths or values that are not positive.
    """
    logs = median_interval([math.log(a / b) for a, b in zip(above, below, strict=True)])
    return Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high), logs.samples)
