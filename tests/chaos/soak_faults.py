"""A mixed load for a long time: what the service holds at rest, between bursts, does not grow."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic

import psutil

from tests.chaos.fault import Experiment, Happened
from tests.chaos.mixed_load import burst
from tests.chaos.victim import Setup, Victim, victim

SETTLE_SECONDS = 300.0
LONG_SECONDS = 900.0
"""From here on it is long enough to judge resident memory; below, SETTLE_SECONDS would be most of it."""

BURST_SECONDS, REST_SECONDS = 10.0, 1.0
MOST_GROWTH = 1.01
LEAST_SAMPLES = 6
ROWS = 4
SETUP = Setup(batch_sizes=f"1,{ROWS}")


@dataclass(frozen=True, slots=True)
class Sample:
    """What is held at rest, by name, `at` so many seconds."""

    at: float
    resident: dict[str, float]
    counts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`growth` of resident memory by process, as a ratio; `grown`: the counts that are not flat."""

    growth: dict[str, float]
    grown: dict[str, tuple[float, float]]


def soaked(seconds: float) -> Experiment:
    """Mixed load for `seconds`, in bursts with a look at rest behind each."""

    def run(folder: Path) -> Happened:
        settle = min(SETTLE_SECONDS, seconds / 4)
        samples = list[Sample]()
        with victim(folder, SETUP) as service:
            service.await_warm()
            engine, number, began = service.engine(), 0, monotonic()
            while monotonic() - began < seconds:
                burst(service.url, min(BURST_SECONDS, seconds / 12), number, rows=ROWS)
                samples.append(sample(service, monotonic() - began))
                number += 1
            same = service.engine() == engine
        found = judge(samples, settle)
        return _happened(found, seconds, settle, same)

    return run


def judge(samples: list[Sample], settle: float) -> Verdict:
    """The last third of the samples after `settle` seconds against the first third of them.

    Resident memory by medians; of a count, the most that was seen in either. Raises ValueError for too few.
    """
    kept = [one for one in samples if one.at >= settle]
    if len(kept) < LEAST_SAMPLES:
        raise ValueError(f"{len(kept)} samples after {settle:g} s: soak for longer")
    third = len(kept) // 3
    first, last = kept[:third], kept[-third:]
    growth = {
        name: median(one.resident[name] for one in last) / median(one.resident[name] for one in first)
        for name in first[0].resident
    }
    most = {
        name: (max(one.counts[name] for one in first), max(one.counts[name] for one in last))
        for name in first[0].counts
    }
    return Verdict(growth, {name: ends for name, ends in most.items() if ends[1] > ends[0]})


def _happened(found: Verdict, seconds: float, settle: float, same_engine: bool) -> Happened:
    judged = seconds >= LONG_SECONDS
    small = all(ratio <= MOST_GROWTH for ratio in found.growth.values())
    good = same_engine and not found.grown and (small or not judged)
    grown = ", ".join(f"{name} {before:g} → {now:g}" for name, (before, now) in found.grown.items())
    resident = ", ".join(f"{name} {(ratio - 1) * 100:+.2f} %" for name, ratio in found.growth.items())
    words = (
        f"resident memory {resident} after the first {settle:.0f} s"
        f"{'' if judged else f' (told, not judged, below {LONG_SECONDS:.0f} s)'}; "
        f"{grown or 'descriptors, threads and series flat'}{'' if same_engine else '; another engine'}"
    )
    return Happened(words, seconds, good, {f"resident_{name}": ratio for name, ratio in found.growth.items()})


def sample(service: Victim, at: float) -> Sample:
    """What front and engine hold once nothing runs."""
    service.at_rest()
    threading.Event().wait(REST_SECONDS)  # connections are closed by both sides
    processes = {
        "front": psutil.Process(service.process.pid),
        "engine": psutil.Process(service.engine()),
    }
    counts = {"series": float(len(service.series()))}
    for name, process in processes.items():
        counts |= {f"descriptors of {name}": process.num_fds(), f"threads of {name}": process.num_threads()}
    return Sample(at, {name: process.memory_info().rss for name, process in processes.items()}, counts)
