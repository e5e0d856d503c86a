"""The same arrivals without batching and with it, in turn, and the ratios of the rounds.

Sweeps of two services one after the other differ by what the machine did meanwhile, a tenth and more;
within a round of seconds it does much the same to both. Two processes of one build differ by some percent all
the same, in every request alike: either one service does both, or requests which met nobody are the control.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

import msgspec

from loadtests.batching_cost.visits import Visit, arrive_apart, due_times, visit
from loadtests.run.open_connection import OpenConnection
from service.statistics.intervals import as_json, paired_ratio

ALONE_REQUESTS = 5
"""To each service before each round, one after the other: the load stays what was asked for on a machine that
becomes twice as fast within minutes."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One visit each, at the same arrivals: `rate` a second, the load asked for by `alone_seconds`.

    `alone_seconds` is the median latency of a request alone at the service without batching, just before.
    `apart` are the requests that met nobody, as the arrivals alone tell: no other has a part in what they
    take, and they differ by what two processes, their turns and an unmerged batch differ by.
    """

    rate: float
    alone_seconds: float
    off: Visit
    batched: Visit
    apart: list[int]


def one_round(ways: Sequence[Sequence[OpenConnection]], load: float, requests: int, number: int) -> Round:
    """Visit the `ways`, without batching and with it; every second time in the other order.

    Raises TargetError.
    """
    order = (0, 1) if number % 2 == 0 else (1, 0)
    alone = {way: median(ways[way][0].request()[0] for _ in range(ALONE_REQUESTS)) for way in order}
    rate = load / alone[0]
    due = due_times(rate, requests, seed=number)
    visits = {way: visit(due, ways[way]) for way in order}
    return Round(
        rate=rate,
        alone_seconds=alone[0],
        off=visits[0],
        batched=visits[1],
        apart=arrive_apart(due, alone[0]),
    )


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Latency with batching over that without, each round one value, with 95 %.

    `times_as_long` is of the rounds' medians, `mean_times_as_long` of their means, in which those who met
    many weigh most. `apart_times_as_long` is of the requests that met nobody (geometric means): what the two
    services differ by without batching's doing. `cost` is `times_as_long` over that. Rounds in which every
    request may have met another have no part in the last two, which are None where that is so in all.
    """
    medians = [(one.batched.median_seconds, one.off.median_seconds) for one in rounds]
    means = [(one.batched.mean_seconds, one.off.mean_seconds) for one in rounds]
    control = [(one.batched.mean_of(one.apart), one.off.mean_of(one.apart)) for one in rounds if one.apart]
    with_control = [pair for pair, one in zip(medians, rounds, strict=True) if one.apart]
    costs = [
        (batched / off, batched_apart / off_apart)
        for (batched, off), (batched_apart, off_apart) in zip(with_control, control, strict=True)
    ]
    return {
        "rate": median(one.rate for one in rounds),
        "off_median_seconds": median(off for _, off in medians),
        "batched_median_seconds": median(batched for batched, _ in medians),
        "effective_batch": fmean(one.batched.effective_batch for one in rounds),
        "apart_requests": sum(len(one.apart) for one in rounds),
        "times_as_long": _ratio(medians),
        "mean_times_as_long": _ratio(means),
        "apart_times_as_long": _ratio(control),
        "cost": _ratio(costs),
    }


def load_found(rounds: Sequence[Round]) -> float | None:
    """The share of what the service without batching could serve, by the requests that met nobody."""
    loads = [one.rate * one.off.latency_seconds[number] for one in rounds for number in one.apart]
    return median(loads) if loads else None


def _ratio(pairs: Sequence[tuple[float, float]]) -> dict[str, float | int | None] | None:
    """Of the first over the second of each pair; None where there is no pair."""
    return as_json(paired_ratio([one for one, _ in pairs], [other for _, other in pairs])) if pairs else None
