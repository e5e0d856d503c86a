"""A step on CUDA: kernels, launch calls and kernel time by the profiler, and lines that synchronise."""

from __future__ import annotations

import warnings

import torch

from service.anatomy.operators.source_lines import SourceLine
from service.measure.cases import Bench, Case
from service.step.profiling import attach_profiler, profile_step
from service.step.trace import ProfiledStep

REPORTED = "called a synchronizing CUDA operation"
"""torch's own text for a wait. When the mode is set it also warns that this is a prototype."""

NO_DEVICE = "on a CPU operators run where they are called: there are no launches and no kernels to count"


def device_work(bench: Bench, case: Case) -> ProfiledStep | None:
    """The profiled step with the median kernel time of a few; None on a CPU."""
    if bench.device.type != "cuda":
        return None
    attach_profiler(bench.device)
    bench.synchronise()
    return profile_step(case.step, case.buffers, case.phase)


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
