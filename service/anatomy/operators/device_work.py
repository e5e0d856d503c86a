"""A step on CUDA: kernels, launch calls and kernel time by the profiler, and lines that synchronise."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from service.anatomy.operators.source_lines import SourceLine
from service.measure.cases import Bench, Case
from service.statistics.intervals import Interval, median_interval
from service.step.profiling import INTERVAL_STEPS, attach_profiler, profile_steps
from service.step.trace import ProfiledStep, typical_step

REPORTED = "called a synchronizing CUDA operation"
"""torch's own text for a wait. When the mode is set it also warns that this is a prototype."""

NO_DEVICE = "on a CPU operators run where they are called: there are no launches and no kernels to count"


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """Steps of a case under the profiler, alike and in one session.

    `step` is the typical one. `kernel_seconds` is the median over those whose kernels are known, without ends
    where they are fewer than six; None where none is known, for the reason that `step` has.
    """

    step: ProfiledStep
    kernel_seconds: Interval | None


def device_work(bench: Bench, case: Case) -> DeviceWork | None:
    """What `case` does on the device, called as its clock calls it; None on a CPU."""
    if bench.device.type != "cuda":
        return None
    attach_profiler(bench.device)
    bench.synchronise()
    steps = profile_steps(case.step, case.arguments, INTERVAL_STEPS)
    known = [step.kernel_seconds for step in steps if step.kernel_seconds is not None]
    return DeviceWork(typical_step(steps), median_interval(known) if known else None)


def reported_waits(bench: Bench, case: Case) -> list[str]:
    """The lines of one step that CUDA's sync debug mode reports; empty on a CPU."""
    if bench.device.type != "cuda":
        return []
    bench.synchronise()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            case.call()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return [str(SourceLine.in_file(w.filename, w.lineno)) for w in caught if REPORTED in str(w.message)]
