"""Check on a GPU: kernel time against the profiler's own sum, and graph launches."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from msgspec.structs import replace
from torch._C._autograd import DeviceType
from torch.profiler import profile

from service.measure.cases import Case
from service.measure.rounds import Log
from service.measure.variants import Variants
from service.proof.rows import Check, NotMeasurableError, Property, Row
from service.step.profiler_session import Separator
from service.step.profiling import chrome_events, profile_step, record_session
from service.step.step_reading import read_steps
from service.step.trace import LEAD_MARK, STEP_MARK

STEPS = 5
REPLAYED = "reduce-overhead"
KERNELS = Property("kernel / profiler's own sum", "within 5 %", most=0.05)
GRAPHS = Property(f"{REPLAYED}: one graph launch per decode step", "all")


def measure_cuda(variants: Variants, log: Log) -> dict[tuple[str, str], list[float]]:
    """By quantity and mode: kernel seconds of a session by ours and by the profiler's sum; graph launches.

    Without kernel seconds where the profiler did not find them all. Raises NotMeasurableError without a GPU.
    """
    if variants.device.type != "cuda":
        raise NotMeasurableError("no CUDA device is used")
    found: dict[tuple[str, str], list[float]] = {}
    for mode in variants.modes:
        log(f"{mode}, profiling")
        sums = kernel_seconds(variants.device, variants.case(mode)) or ()
        found |= {("ours", mode): list(sums[:1]), ("profiler", mode): list(sums[1:])}
    if REPLAYED in variants.modes:
        case = variants.case(REPLAYED)
        launches = [profile_step(case.step, case.buffers).graph_launches for _ in range(STEPS)]
        # Without any, what is known of replay is nothing: no samples, which is not 0.
        known = [float(count) for count in launches if count is not None]
        found["graph_launches", REPLAYED] = known if len(known) == len(launches) else []
    return found


def kernel_seconds(device: torch.device, case: Case) -> tuple[float, float] | None:
    """Of the same STEPS steps: the sum over the trace's kernels, and that of the profiler's own table.

    Both are sums of durations. None where the kernels of a step are unknown. What separates the steps, so
    that a replay's kernels are known whatever their ids, is a copy: no kernel in either sum.
    """
    session = record_session(device, case.call, STEPS, Separator(device, copies=True))
    steps = read_steps(chrome_events(session), cuda=True)
    sums = [step.kernel_sum_seconds for step in steps if step.kernel_sum_seconds is not None]
    return (sum(sums), _table_seconds(session)) if sums and len(sums) == len(steps) else None


def _table_seconds(session: profile) -> float:
    """The sum over kernels of the profiler's own table, which lists copies, fills and marks beside them."""
    on_device = [event for event in session.key_averages() if event.device_type == DeviceType.CUDA]
    kernels = [event for event in on_device if not event.key.startswith(("Mem", STEP_MARK, LEAD_MARK))]
    return float(sum(event.self_device_time_total for event in kernels)) / 1e6


def judge_cuda(found: Mapping[tuple[str, str], list[float]]) -> list[Row]:
    """Kernel time against the profiler's sum per mode; one launch per replay."""
    modes = [mode for what, mode in found if what == "ours"]
    rows = [_kernels(mode, found["ours", mode], found["profiler", mode]) for mode in modes]
    return [*rows, _graphs(found.get(("graph_launches", REPLAYED)))]


def _kernels(mode: str, ours: list[float], profilers: list[float]) -> Row:
    """Exact: both are sums over the same kernels of the same trace. Shows the session farthest from 1."""
    if not ours or not profilers:
        reason = "which kernels are a step's is not known: the profiler lost some, or gave them wrong ids"
        return KERNELS.not_measurable(reason, f": {mode}")
    ratios = [a / b for a, b in zip(ours, profilers, strict=True)]
    farthest = max(ratios, key=lambda ratio: abs(ratio - 1))
    note = f"{ours[0] / STEPS * 1e6:.0f} µs per step"
    return KERNELS.exactly(abs(farthest - 1) <= KERNELS.most, farthest, f": {mode}", note)


def _graphs(launches: list[float] | None) -> Row:
    if launches is None:
        return GRAPHS.not_measurable(f"{REPLAYED} is not served")
    if not launches:
        return GRAPHS.not_measurable("the profiler recorded no launch call of a step")
    ones = sum(count == 1 for count in launches)
    note = f"launches seen: {[round(count) for count in launches]}"
    return replace(GRAPHS.exactly(ones == len(launches), float(ones), "", note), unit=f"of {len(launches)}")


CUDA = Check(measure_cuda, judge_cuda, (KERNELS, GRAPHS))
