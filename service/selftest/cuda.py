"""What only a GPU can show: kernels against the profiler's sum, twin against measured dispatch, graphs."""

from __future__ import annotations

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from service.measure.rounds import Say, in_rounds, paired_median_ratio
from service.measure.variants import Case, Lab
from service.selftest.results import CheckResult, exact, judged, not_measurable
from service.statistics.intervals import Interval
from service.step.profiling import chrome_events, profile_step
from service.step.trace import STEP_MARK, read_steps

ROUNDS = 30
STEPS = 5
KERNELS, KERNELS_BOUND = "kernel / profiler's own sum", "within 5 %"
TWIN, TWIN_BOUND = "twin's floor / measured dispatch", "within 10 %"
GRAPHS, GRAPHS_BOUND = "reduce-overhead: one graph launch per decode step", "all"


def on_cuda(lab: Lab, say: Say) -> list[CheckResult]:
    """The rows that need a GPU."""
    if lab.device.type != "cuda":
        why = "no CUDA device is used"
        named = ((KERNELS, KERNELS_BOUND), (TWIN, TWIN_BOUND), (GRAPHS, GRAPHS_BOUND))
        return [not_measurable(name, bound, why) for name, bound in named]
    rows = []
    for mode in lab.modes:
        say(f"{mode}, profiling")
        rows += [_kernels(mode, lab.case(mode)), _twin(lab, mode, say)]
    return [*rows, _graphs(lab)]


def _kernels(mode: str, case: Case) -> CheckResult:
    """Our sum over the trace's kernels against the profiler's own table, of the same steps."""
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
    return judged(f"{KERNELS}: {mode}", KERNELS_BOUND, interval, least=0.95, most=1.05, note=note)


def _twin(lab: Lab, mode: str, say: Say) -> CheckResult:
    case, twin = lab.case(mode), lab.twin(mode)

    def dispatch() -> float:
        torch.cuda.synchronize()
        return case.decode_seconds(steps=3)

    with lab.settled():
        found = in_rounds(
            {"real": dispatch, "twin": lambda: lab.floor_seconds(twin)}, ROUNDS, f"cuda/{mode}", say
        )
    ratio = paired_median_ratio(found["twin"], found["real"])
    return judged(f"{TWIN}: {mode}", TWIN_BOUND, ratio, least=0.9, most=1.1, numbers=dict(found))


def _graphs(lab: Lab) -> CheckResult:
    if "reduce-overhead" not in lab.modes:
        return not_measurable(GRAPHS, GRAPHS_BOUND, "reduce-overhead is not served")
    case = lab.case("reduce-overhead")
    launches = [profile_step(case.step, case.buffers).graph_launches for _ in range(STEPS)]
    ones = sum(count == 1 for count in launches)
    return exact(
        GRAPHS, GRAPHS_BOUND, ones == STEPS, float(ones), f"of {STEPS}", f"launches seen: {launches}"
    )
