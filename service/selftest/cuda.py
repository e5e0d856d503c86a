"""Checks on a GPU: kernel time against the profiler's sum, twin against measured dispatch, graph launches."""

from __future__ import annotations

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from service.measure.cases import Case
from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.measure.variants import Variants
from service.selftest.results import CheckResult, exact_result, interval_result, not_measurable
from service.statistics.intervals import Interval
from service.step.profiling import chrome_events, profile_step
from service.step.trace import STEP_MARK, read_steps

ROUNDS = 30
STEPS = 5
KERNELS, KERNELS_BOUND = "kernel / profiler's own sum", "within 5 %"
TWIN, TWIN_BOUND = "twin's floor / measured dispatch", "within 10 %"
GRAPHS, GRAPHS_BOUND = "reduce-overhead: one graph launch per decode step", "all"


def on_cuda(variants: Variants, log: Log) -> list[CheckResult]:
    """The rows that need a GPU; without one, why they have no number."""
    if variants.device.type != "cuda":
        why = "no CUDA device is used"
        named = ((KERNELS, KERNELS_BOUND), (TWIN, TWIN_BOUND), (GRAPHS, GRAPHS_BOUND))
        return [not_measurable(name, bound, why) for name, bound in named]
    rows = []
    for mode in variants.modes:
        log(f"{mode}, profiling")
        rows += [_kernels(mode, variants.case(mode)), _twin(variants, mode, log)]
    return [*rows, _graphs(variants)]


def _kernels(mode: str, case: Case) -> CheckResult:
    """The sum over the trace's kernels over that of the profiler's own table, for the same steps."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as session:
        for _ in range(STEPS):
            with record_function(STEP_MARK):
                case.call_seconds()
        torch.cuda.synchronize()
    ours = sum(step.kernel_seconds or 0.0 for step in read_steps(chrome_events(session), cuda=True))
    on_device = [event for event in session.key_averages() if event.device_type == DeviceType.CUDA]
    kernels = [event for event in on_device if not event.key.startswith(("Mem", STEP_MARK))]
    ratio = ours * 1e6 / sum(event.self_device_time_total for event in kernels)
    note = f"{ours / STEPS * 1e6:.0f} µs per step"
    interval = Interval(ratio, ratio, ratio, STEPS)
    return interval_result(f"{KERNELS}: {mode}", KERNELS_BOUND, interval, least=0.95, most=1.05, note=note)


def _twin(variants: Variants, mode: str, log: Log) -> CheckResult:
    case, twin = variants.case(mode), variants.twin(mode)

    def dispatch() -> float:
        torch.cuda.synchronize()
        return case.steady_seconds(steps=3)

    with variants.isolated():
        found = in_rounds(
            {"real": dispatch, "twin": lambda: variants.floor_seconds(twin)}, ROUNDS, f"cuda/{mode}", log
        )
    ratio = paired_median_ratio(found["twin"], found["real"])
    return interval_result(f"{TWIN}: {mode}", TWIN_BOUND, ratio, least=0.9, most=1.1, numbers=dict(found))


def _graphs(variants: Variants) -> CheckResult:
    if "reduce-overhead" not in variants.modes:
        return not_measurable(GRAPHS, GRAPHS_BOUND, "reduce-overhead is not served")
    case = variants.case("reduce-overhead")
    launches = [profile_step(case.step, case.buffers).graph_launches for _ in range(STEPS)]
    ones = sum(count == 1 for count in launches)
    return exact_result(
        GRAPHS, GRAPHS_BOUND, ones == STEPS, float(ones), f"of {STEPS}", f"launches seen: {launches}"
    )
