"""Check of what a sweep's split rests on: a request that is sampled as it runs shows the split of its steps.

The rows that prove the split (a longer kernel, added host work, equal kernels) sample steps in a row. A sweep
samples requests: prefill, then decode, with the engine's own work between steps. These rows tie the two, and
hold the number of samples to the time of the steps that they fell into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from service.engine.request_samples import RequestSamples
from service.measure.cases import Bench, Case
from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.protocol.messages import Phase
from service.selftest.check import Check, NotMeasurableError
from service.selftest.places import PHASES
from service.selftest.request_path import BUCKET, RequestPath
from service.selftest.results import CheckResult, interval_result
from service.selftest.sampled_dispatch import FIRST_SECONDS, sampled, seconds_for, stack_sampler
from service.statistics.intervals import median_interval
from service.step.calibration import Calibration
from service.step.native.perf_events import SAMPLES_PER_SECOND
from service.step.native.stacks import StackSampler
from service.step.untimed import PREFILL_TOKENS

ROUNDS = 24
HOST_SAMPLES = 200
"""Wanted per round and arm: a round's ratio is then known within 10 %, the median of all rounds within 5 at
95 %. How long an arm runs for them follows from dispatch's share in the uncounted round.
"""

AS_LONG = [0] * PREFILL_TOKENS
"""A prompt of as many tokens as a prefill step in a row has: dispatch's share depends on that."""

APART = 0.10
NAME = "dispatch of a sampled request / of steps in a row"
BOUND = "within 10 %"
TIME_APART = 0.03
TIME_NAME = "samples within a request's steps / their time"
TIME_BOUND = "within 3 %"
NO_RATIO = 1e3
"""In place of the ratio of a round in which steps in a row show no dispatch at all: far outside."""


class Seen(NamedTuple):
    """Dispatch's share of a phase; of requests also the samples over what their steps' time should have."""

    share: float
    of_time: float = 1.0


Arm = tuple[str, Phase, str]
"""Mode, phase, and `request` or `steps`."""


def measure_served_samples(variants: Variants, log: Log) -> dict[Arm, list[Seen]]:
    """Both phases at batch 1 by mode, in requests and in steps in a row, which take turns.

    Raises NotMeasurableError on CUDA, and where sampling is forbidden.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA dispatch is measured")
    bench = Bench(msgspec.structs.replace(variants.settings, batch_sizes=[BUCKET], context=None))
    with TemporaryDirectory(prefix="launchbound-") as folder, stack_sampler() as sampler, variants.isolated():
        samples = RequestSamples(sampler)
        measure: dict[Arm, Callable[[float], Seen]] = {}
        for mode in variants.modes:
            log(f"warming {mode}")
            path = RequestPath(bench, mode, Calibration(bench.model, None), Path(folder))
            for phase in PHASES:
                measure[mode, phase, "request"] = partial(of_requests, path, samples, phase)
                case = bench.case(mode, BUCKET, phase)
                between = partial(path.unmeasured, AS_LONG, new_tokens=1) if phase == "prefill" else None
                measure[mode, phase, "steps"] = partial(of_steps, sampler, case, between)
        first = {arm: partial(run, FIRST_SECONDS) for arm, run in measure.items()}
        seen = in_rounds(first, 1, "served-samples uncounted", log)
        share = {(mode, phase): seen[mode, phase, "steps"][0].share for mode, phase, _ in measure}
        arms = {
            arm: partial(run, seconds_for(HOST_SAMPLES, share[arm[0], arm[1]]))
            for arm, run in measure.items()
        }
        return in_rounds(arms, ROUNDS, "served-samples", log)


def of_requests(path: RequestPath, samples: RequestSamples, phase: Phase, seconds: float) -> Seen:
    """The steps of `phase` of as many requests as take `seconds` for these.

    One before them is not sampled: its code is cold. Those for prefill generate one token. A request that
    lost samples counts for none. Raises NotMeasurableError where none is left.
    """
    path.unmeasured()
    called = counted = kernel = host = 0.0
    while called < seconds:
        if phase == "decode":
            readings = path.sampled(samples).decode
        else:
            readings = path.sampled(samples, AS_LONG, new_tokens=1).prefill
        took = sum(readings.call) / 1e9
        called += took
        if readings.samples is not None:
            kernel, host = kernel + readings.samples.kernel, host + readings.samples.host
            counted += took
    if not kernel + host:
        raise NotMeasurableError("no sample fell into a step of a request")
    return Seen(host / (kernel + host), (kernel + host) / (counted * SAMPLES_PER_SECOND))


def of_steps(sampler: StackSampler, case: Case, between: Callable[[], object] | None, seconds: float) -> Seen:
    """Steps in a row for `seconds`; in `between` two of prefill a request runs, unsampled, because a
    request's prefill follows other code, after which the host takes longer.
    """
    return Seen(1 - sampled(sampler, case, seconds, between).kernel_share)


def judge_served_samples(found: Mapping[Arm, list[Seen]]) -> list[CheckResult]:
    """Per mode and phase, paired by round; and samples over time, all rounds of a mode's decode together."""
    places = list(dict.fromkeys((mode, phase) for mode, phase, _ in found))
    rows = [_shares(mode, phase, found) for mode, phase in places]
    return rows + [
        _of_time(mode, found[mode, "decode", "request"]) for mode, phase in places if phase == "decode"
    ]


def _shares(mode: str, phase: Phase, found: Mapping[Arm, list[Seen]]) -> CheckResult:
    requests, steps = ([seen.share for seen in found[mode, phase, arm]] for arm in ("request", "steps"))
    shown = (f"{100 * median_interval(values).value:.1f} %" for values in (requests, steps))
    return interval_result(
        f"{NAME}: {mode}, {phase}, batch {BUCKET}",
        BOUND,
        median_interval([a / b if b > 0 else NO_RATIO for a, b in zip(requests, steps, strict=True)]),
        least=1 - APART,
        most=1 + APART,
        note=" against ".join(shown),
        numbers={"request_shares": requests, "steps_shares": steps},
    )


def _of_time(mode: str, seen: list[Seen]) -> CheckResult:
    ratios = [one.of_time for one in seen]
    return interval_result(
        f"{TIME_NAME}: {mode}, decode, batch {BUCKET}",
        TIME_BOUND,
        median_interval(ratios),
        least=1 - TIME_APART,
        most=1 + TIME_APART,
        note=f"{SAMPLES_PER_SECOND} samples per second",
        numbers={"of_time": ratios},
    )


SERVED_SAMPLES = Check(measure_served_samples, judge_served_samples, ((NAME, BOUND), (TIME_NAME, TIME_BOUND)))
