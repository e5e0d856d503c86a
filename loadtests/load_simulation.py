"""How far off a sweep's knees and quantiles of latency are, by sweeps of a simulated queue with known ones.

`python -m loadtests.load_simulation [SWEEPS]` prints the tables of docs/method.md; it measures nothing of a
machine. Rounds, visits and their judgement are those of a report.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

import numpy as np

from loadtests.simulated_queue import SimulatedQueue, SimulatedVisits, Values, simulated_visits
from service.statistics.knee import (
    SERVED_SHARE,
    BoundedEstimate,
    Bounds,
    kept_up_point,
    knee,
    knee_ratio,
    met_point,
)
from service.statistics.quantiles import quantile_interval
from service.statistics.visits import KEEPING_UP_AFTER, served_share, settling

ROUND_SCATTER = 0.02
"""Of the machine's speed, as a standard deviation of logarithms: what all visits of a round share."""

VISIT_SCATTER = 0.02
"""What each visit has for itself."""

FASTER = 1.5
"""The second mode's speed over the first one's, where two are compared."""

LONG = 4000
"""Requests of a visit that is as good as endless; its first quarter is left out as well."""


@dataclass(frozen=True, slots=True)
class LoadSweep:
    """A sweep of one mode over a ladder of `rates`; `limit` is its objective in times in service.

    None: no objective, the rate at which answers no longer keep up is looked for.
    """

    rates: tuple[float, ...]
    limit: float | None = 6.0
    share: float = 0.95
    requests: int = 100
    rounds: int = 8
    queue: SimulatedQueue = field(default_factory=SimulatedQueue)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of all sweeps: mean error of the values that were known, shares of intervals, their mean width.

    `error` and `width` are relative to the truth; `width` is of the intervals with two ends. None: no sweep
    had one.
    """

    error: float | None
    covered: float
    open: float
    width: float | None


def knees(
    sweep: LoadSweep, speed: float, round_slowness: Values, random: np.random.Generator
) -> BoundedEstimate:
    """The knee that a report would say, of a mode `speed` times as fast whose ladder is as much higher."""
    rates = np.repeat(sweep.rates, sweep.rounds)
    own = np.exp(random.normal(0, VISIT_SCATTER, rates.size))
    slowness = np.tile(round_slowness, len(sweep.rates)) * own
    # Time is counted in this mode's own times in service.
    visits = simulated_visits(sweep.queue, rates, slowness, sweep.requests, random)
    shares = np.reshape(_shares(visits, sweep.limit), (len(sweep.rates), sweep.rounds)).tolist()
    judged = sweep.requests - settling(sweep.requests)
    point = kept_up_point if sweep.limit is None else met_point
    found = [point(rate * speed, own, judged) for rate, own in zip(sweep.rates, shares, strict=True)]
    return knee(found, SERVED_SHARE if sweep.limit is None else sweep.share)


def _shares(visits: SimulatedVisits, limit: float | None) -> list[float]:
    if limit is not None:
        judged = visits.latencies[:, settling(visits.latencies.shape[1]) :]
        return [float(share) for share in np.mean(judged <= limit, axis=1)]
    left_out = settling(visits.due.shape[1], KEEPING_UP_AFTER)
    return [
        served_share(due.tolist(), [None if np.isnan(end) else float(end) for end in ended], left_out)
        for due, ended in zip(visits.due, visits.ended, strict=True)
    ]


@cache
def true_knee(sweep: LoadSweep) -> float:
    """The rate at which an endless visit has `share` of its requests within the limit, by bisection."""
    if sweep.limit is None:
        return 1 / SERVED_SHARE
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        visits = simulated_visits(
            sweep.queue, np.full(200, middle), np.ones(200), LONG, np.random.default_rng(1)
        )
        met = float(np.mean(visits.latencies[:, settling(LONG) :] <= sweep.limit))
        low, high = (middle, high) if met >= sweep.share else (low, middle)
    return (low + high) / 2


def knee_accuracy(sweep: LoadSweep, sweeps: int) -> tuple[Accuracy, Accuracy]:
    """Of the knee, and of the ratio of two modes' knees, over simulated sweeps."""
    truth, random = true_knee(sweep), np.random.default_rng(5)
    single, ratios = [], []
    for _ in range(sweeps):
        slowness = np.exp(random.normal(0, ROUND_SCATTER, sweep.rounds))
        first, second = (knees(sweep, speed, slowness, random) for speed in (1.0, FASTER))
        single.append(first)
        ratios.append(knee_ratio(first, second))
    return accuracy(single, truth), accuracy(ratios, FASTER)


def accuracy(found: Sequence[BoundedEstimate], truth: float) -> Accuracy:
    """The accuracy of estimates of `truth`."""
    known = [one.value.low for one in found if one.value.known]
    closed = [one for one in found if one.low > 0 and one.high < float("inf")]
    return Accuracy(
        error=float(np.mean(known)) / truth - 1 if known else None,
        covered=sum(one.low <= truth <= one.high for one in found) / len(found),
        open=1 - len(closed) / len(found),
        width=float(np.mean([one.high - one.low for one in closed])) / truth if closed else None,
    )


def quantile_accuracy(
    load: float, requests: int, rounds: int, share: float, sweeps: int
) -> tuple[Accuracy, float]:
    """Of the latency's quantile at `share` of an endless visit at `load`; and the quantile itself."""
    random, queue = np.random.default_rng(7), SimulatedQueue(bound=4096)
    scatter = np.hypot(ROUND_SCATTER, VISIT_SCATTER)
    slowness = np.exp(random.normal(0, scatter, 200))
    endless = simulated_visits(queue, np.full(200, load), slowness, LONG, random).latencies
    truth = float(np.quantile(endless[:, settling(LONG) :], share))
    found = []
    for _ in range(sweeps):
        slowness = np.exp(random.normal(0, scatter, rounds))
        latencies = simulated_visits(queue, np.full(rounds, load), slowness, requests, random).latencies
        interval = quantile_interval(list(latencies[:, settling(requests) :]), share)
        if interval is not None:
            low = max(0.0, interval.low)
            found.append(BoundedEstimate(Bounds(interval.value, interval.value), low, interval.high))
    return accuracy(found, truth), truth


def _ladder(low: float, high: float, step: float) -> tuple[float, ...]:
    return tuple(round(rate, 3) for rate in np.arange(low, high + step / 2, step).tolist())


WIDE = _ladder(0.3, 1.2, 0.1)
SWEEPS: dict[str, LoadSweep] = {
    "latency ≤ 6, 40 requests": LoadSweep(WIDE, requests=40),
    "latency ≤ 6, 100 requests": LoadSweep(WIDE),
    "the same, 6 rounds": LoadSweep(WIDE, rounds=6),
    "the same, 10 rounds": LoadSweep(WIDE, rounds=10),
    "the same, steps of 0.05": LoadSweep(_ladder(0.5, 1.0, 0.05)),
    "the same, steps of 0.2": LoadSweep(_ladder(0.4, 1.2, 0.2)),
    "latency ≤ 6, 400 requests": LoadSweep(WIDE, requests=400),
    "latency ≤ 3, 100 requests": LoadSweep(_ladder(0.1, 1.0, 0.1), limit=3.0),
    "latency ≤ 20, 100 requests": LoadSweep(WIDE, limit=20.0),
    "latency ≤ 20, 400 requests": LoadSweep(WIDE, limit=20.0, requests=400),
    "latency ≤ 6 for 99 %, 100 requests": LoadSweep(_ladder(0.1, 1.0, 0.1), share=0.99),
    "saturation, 40 requests": LoadSweep(_ladder(0.7, 1.5, 0.1), limit=None, requests=40),
    "saturation, 100 requests": LoadSweep(_ladder(0.7, 1.5, 0.1), limit=None),
    "saturation, 400 requests": LoadSweep(_ladder(0.7, 1.5, 0.1), limit=None, requests=400),
}
"""Limits are in mean times in service, rates in what one server serves at most; 8 rounds unless said."""


def knee_table(sweeps: int) -> Iterator[str]:
    """The accuracy of knees and of their ratios, as lines of Markdown."""
    yield "| sweep | true knee | error | covered | open | width | ratio: error | covered | open | width |"
    yield "|---" * 10 + "|"
    for label, sweep in SWEEPS.items():
        single, ratio = knee_accuracy(sweep, sweeps)
        yield f"| {label} | {true_knee(sweep):.3f} | {_shown(single)} | {_shown(ratio)} |"


def quantile_table(sweeps: int) -> Iterator[str]:
    """The accuracy of quantiles of latency, as lines of Markdown."""
    yield "| load | requests | quantile | truth | error | covered | open | width |"
    yield "|---" * 8 + "|"
    for load in (0.5, 0.8, 0.95):
        for requests in (100, 400):
            for share in (0.5, 0.9, 0.99):
                found, truth = quantile_accuracy(load, requests, 8, share, sweeps)
                yield f"| {load} | {requests} | p{100 * share:.0f} | {truth:.2f} | {_shown(found)} |"


def _shown(found: Accuracy) -> str:
    return " | ".join(_percent(one) for one in (found.error, found.covered, found.open, found.width))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %".replace("-", "−")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    for line in chain(knee_table(count), [""], quantile_table(count)):
        print(line, flush=True)
