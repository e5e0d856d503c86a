"""How far off a sweep's knees and quantiles of latency are, by sweeps of a simulated queue with known ones.

`python -m loadtests.load_simulation [SWEEPS]` prints the tables of docs/method.md; it measures nothing of a
machine. Rounds, visits and their judgement are those of a report.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from loadtests.simulated_queue import SimulatedQueue, simulated_visits
from loadtests.simulated_sweeps import LONG, ROUND_SCATTER, VISIT_SCATTER, LoadSweep, knees, true_knee
from service.statistics.knee import BoundedEstimate, Bounds, knee_ratio
from service.statistics.quantiles import quantile_interval
from service.statistics.visits import settling

FASTER = 1.5
"""The second mode's speed over the first one's, where two are compared."""


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


def knee_accuracy(sweep: LoadSweep, sweeps: int) -> tuple[Accuracy, Accuracy]:
    """Of the knee, and of the ratio of two modes' knees, over simulated sweeps."""
    # An objective is the same for both modes, so it is longer in the faster one's times in service.
    faster = replace(sweep, limit=None if sweep.limit is None else FASTER * sweep.limit)
    truth, random = true_knee(sweep), np.random.default_rng(5)
    single, ratios = [], []
    for _ in range(sweeps):
        slowness = np.exp(random.normal(0, ROUND_SCATTER, sweep.rounds))
        first = knees(sweep, 1.0, slowness, random)
        single.append(first)
        ratios.append(knee_ratio(first, knees(faster, FASTER, slowness, random)))
    return accuracy(single, truth), accuracy(ratios, FASTER * true_knee(faster) / truth)


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
