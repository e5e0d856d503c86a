"""Interleaving: every arm runs once per round in a fresh seeded order, so that drift affects all alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TypeVar

from service.statistics.intervals import Interval, median_interval

Key = TypeVar("Key")
Value = TypeVar("Value")
Log = Callable[[str], None]
"""Takes one line of progress, at least every few seconds."""


def in_rounds(
    arms: Mapping[Key, Callable[[], Value]], count: int, seed: str | None, log: Log | None = None
) -> dict[Key, list[Value]]:
    """What each arm returned in each of `count` rounds.

    The order of round `n` is `arms` shuffled by `Random(f"{seed}/{n}")`, and by `Random(n)` without a seed.
    """
    found: dict[Key, list[Value]] = {key: [] for key in arms}
    for number in range(count):
        if log is not None:
            log(f"round {number + 1} of {count}")
        keys = list(arms)
        Random(number if seed is None else f"{seed}/{number}").shuffle(keys)
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
