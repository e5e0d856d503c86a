"""Second witness for the floor: which share of a decode step's CPU time was in kernels, sampled by perf."""

from __future__ import annotations

import os
import platform
from bisect import bisect_right
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter_ns, thread_time_ns

from service.measure.native_stacks import PerfError, Recording, recording
from service.measure.rounds import Say
from service.measure.variants import LEAD_STEPS, Lab
from service.selftest.results import CheckResult, judged, not_measurable
from service.statistics.intervals import median_interval

ROUNDS = 24
WINDOW_NS = 100_000_000
NAME = "kernel share, twin less perf"
BOUND = "within 10 points"
POINTS = 0.10


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of real decode steps of one mode, and what the twin says of it.

    Both witnesses are taken by CPU time: perf's clock stands while another process has the core, and so does
    the thread's.
    """

    mode: str
    began_ns: int
    ended_ns: int
    step_seconds: float
    floor_seconds: float

    @property
    def twin_share(self) -> float:
        """Kernel / step, as the product has it: what the floor leaves."""
        return 1 - min(self.floor_seconds, self.step_seconds) / self.step_seconds


def sampled(lab: Lab, say: Say) -> list[CheckResult]:
    """Per mode: the twin's kernel share less perf's, paired by window."""
    if lab.device.type != "cpu":
        return [not_measurable(NAME, BOUND, "on CUDA kernels are timed by the device")]
    if platform.machine() != "x86_64":
        return [not_measurable(NAME, BOUND, "the classes of symbols are known for x86_64 only")]
    for mode in lab.modes:
        lab.case(mode)
        lab.twin(mode)
    elsewhere = os.sched_getaffinity(0) - set(lab.cpus) or set(lab.cpus)
    windows: list[Window] = []
    try:
        with recording(elsewhere) as seen, lab.settled():
            for number in range(ROUNDS):
                say(f"round {number + 1} of {ROUNDS}")
                modes = list(lab.modes)
                Random(f"perf/{number}").shuffle(modes)
                windows += [_window(lab, mode) for mode in modes]
    except PerfError as error:
        return [not_measurable(NAME, BOUND, str(error))]
    return [_row(mode, [w for w in windows if w.mode == mode], seen) for mode in lab.modes]


def _window(lab: Lab, mode: str) -> Window:
    """Real steps for a tenth of a second, then the floor."""
    case, twin, steps = lab.case(mode), lab.twin(mode), list[float]()
    for _ in range(LEAD_STEPS):
        case.call_seconds()
    began = now = perf_counter_ns()
    while now - began < WINDOW_NS:
        steps.append(case.call_seconds(thread_time_ns))
        now = perf_counter_ns()
    return Window(mode, began, now, median(steps), lab.floor_seconds(twin))


def kernel_shares(windows: list[Window], seen: Recording) -> list[float | None]:
    """Per window, the share of its samples that were in kernels; None where it has none."""
    instants = [sample.instant_ns for sample in seen.samples]
    shares: list[float | None] = []
    for window in windows:
        inside = seen.samples[
            bisect_right(instants, window.began_ns) : bisect_right(instants, window.ended_ns)
        ]
        kernels = sum(sample.side == "kernel" for sample in inside)
        shares.append(kernels / len(inside) if inside else None)
    return shares


def _row(mode: str, windows: list[Window], seen: Recording) -> CheckResult:
    pairs = [
        (window.twin_share, share)
        for window, share in zip(windows, kernel_shares(windows, seen), strict=True)
        if share is not None
    ]
    name = f"{NAME}: {mode}"
    if len(pairs) < 2:
        return not_measurable(name, BOUND, "perf gave no samples of this process")
    twin, perf = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    difference = median_interval([t - p for t, p in pairs])
    note = f"twin {median(twin):.0%} kernel, perf {median(perf):.0%}"
    return judged(
        name,
        BOUND,
        difference,
        least=-POINTS,
        most=POINTS,
        unit="share",
        note=note,
        numbers={"twin_share": twin, "perf_share": perf},
    )
