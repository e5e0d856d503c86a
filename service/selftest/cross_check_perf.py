"""Cross-check of the floor by perf: the share of a decode step's CPU time that was sampled in kernels."""

from __future__ import annotations

import os
import platform
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import NamedTuple

from service.measure.native_stacks import PerfError, Recording, recording
from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.selftest.check import Check, NotMeasurableError
from service.selftest.results import CheckResult, interval_result, not_measurable
from service.statistics.intervals import median_interval
from service.step.untimed import LEAD_STEPS

ROUNDS = 24
WINDOW_NS = 100_000_000
NAME = "kernel share, twin less perf"
BOUND = "within 10 points"
POINTS = 0.10


class Shares(NamedTuple):
    """Kernel / step of one window, by the twin and by perf's samples."""

    twin: float
    perf: float


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of real decode steps of one mode: its instants, the median step and the twin's floor.

    Steps are timed in CPU time, because perf's clock, too, stands while another process has the core.
    """

    began_ns: int
    ended_ns: int
    step_seconds: float
    floor_seconds: float

    @property
    def twin_share(self) -> float:
        """Kernel / step as the service computes it: the step less its floor."""
        return 1 - min(self.floor_seconds, self.step_seconds) / self.step_seconds


def measure_perf(variants: Variants, log: Log) -> dict[str, list[Shares]]:
    """Kernel shares by mode, one pair per window that has samples.

    Raises NotMeasurableError on CUDA, on other processors than x86_64, and where perf cannot be used.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA kernels are timed by the device")
    if platform.machine() != "x86_64":
        raise NotMeasurableError("the classes of symbols are known for x86_64 only")
    for mode in variants.modes:
        variants.case(mode)
        variants.twin(mode)
    elsewhere = os.sched_getaffinity(0) - set(variants.cpus) or set(variants.cpus)
    arms = {mode: partial(_window, variants, mode) for mode in variants.modes}
    try:
        with recording(elsewhere) as recorded, variants.isolated():
            windows = in_rounds(arms, ROUNDS, "perf", log)
    except PerfError as error:
        raise NotMeasurableError(str(error)) from error
    return {mode: shares_of(windows[mode], recorded) for mode in variants.modes}


def shares_of(windows: list[Window], recorded: Recording) -> list[Shares]:
    """Twin's and perf's kernel share of every window that has samples."""
    by_perf = kernel_shares(windows, recorded)
    return [
        Shares(window.twin_share, share)
        for window, share in zip(windows, by_perf, strict=True)
        if share is not None
    ]


def _window(variants: Variants, mode: str) -> Window:
    """Real steps for a tenth of a second, then the floor."""
    case, twin = variants.case(mode), variants.twin(mode)
    steps: list[float] = []
    for _ in range(LEAD_STEPS):
        case.call_seconds()
    began = now = perf_counter_ns()
    while now - began < WINDOW_NS:
        steps.append(case.call_seconds(thread_time_ns))
        now = perf_counter_ns()
    return Window(began, now, median(steps), variants.floor_seconds(twin))


def kernel_shares(windows: list[Window], recorded: Recording) -> list[float | None]:
    """Per window, the share of its samples that were in kernels; None where it has none."""
    instants = [sample.instant_ns for sample in recorded.samples]
    shares: list[float | None] = []
    for window in windows:
        inside = recorded.samples[
            bisect_right(instants, window.began_ns) : bisect_right(instants, window.ended_ns)
        ]
        kernels = sum(sample.side == "kernel" for sample in inside)
        shares.append(kernels / len(inside) if inside else None)
    return shares


def judge_perf(found: Mapping[str, list[Shares]]) -> list[CheckResult]:
    """Per mode: the twin's kernel share less perf's, paired by window."""
    return [_row(mode, pairs) for mode, pairs in found.items()]


def _row(mode: str, pairs: list[Shares]) -> CheckResult:
    name = f"{NAME}: {mode}"
    if len(pairs) < 2:
        return not_measurable(name, BOUND, "perf gave no samples of this process")
    twin = [pair.twin for pair in pairs]
    perf = [pair.perf for pair in pairs]
    return interval_result(
        name,
        BOUND,
        median_interval([pair.twin - pair.perf for pair in pairs]),
        least=-POINTS,
        most=POINTS,
        unit="share",
        note=f"twin {median(twin):.0%} kernel, perf {median(perf):.0%}",
        numbers={"twin_share": twin, "perf_share": perf},
    )


PERF = Check(measure_perf, judge_perf, ((NAME, BOUND),))
