"""Check of what a sweep's split rests on: a request that is sampled as it runs shows the split of its steps.

The rows that prove the split (a longer kernel, added host work, equal kernels) sample steps in a row. A sweep
samples requests: decode from a prompt on, with the engine's own work between steps. This row ties the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from service.engine.request_samples import RequestSamples
from service.measure.cases import Bench, Case
from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.selftest.check import Check, NotMeasurableError
from service.selftest.request_path import BUCKET, RequestPath
from service.selftest.results import CheckResult, interval_result
from service.selftest.sampled_dispatch import sampled, stack_sampler
from service.statistics.intervals import median_interval
from service.statistics.sampled_share import dispatch_share
from service.step.calibration import Calibration
from service.step.native.stacks import StackSampler

ROUNDS = 24
REQUESTS = 2
"""Per round, some hundred samples each: with as many of steps in a row a round's ratio is known within 15 %,
and the median of all within 3.
"""

SAMPLED_SECONDS = 0.08
APART = 0.10
NAME = "dispatch of a sampled request / of steps in a row"
BOUND = "within 10 %"
NO_RATIO = 1e3
"""In place of the ratio of a round in which steps in a row show no dispatch at all: far outside."""

Arm = tuple[str, str]
"""Mode, and `request` or `steps`."""


def measure_served_samples(variants: Variants, log: Log) -> dict[Arm, list[float]]:
    """Dispatch's share of decode at batch 1 by mode, in requests and in steps in a row, which take turns.

    Raises NotMeasurableError on CUDA, and where sampling is forbidden.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA dispatch is measured")
    bench = Bench(msgspec.structs.replace(variants.settings, batch_sizes=[BUCKET], context=None))
    with TemporaryDirectory(prefix="launchbound-") as folder, stack_sampler() as sampler, variants.isolated():
        samples = RequestSamples(sampler)
        arms: dict[Arm, Callable[[], float]] = {}
        for mode in variants.modes:
            log(f"warming {mode}")
            path = RequestPath(bench, mode, Calibration(bench.model, None), Path(folder))
            case = bench.case(mode, BUCKET, "decode")
            arms[mode, "request"] = partial(of_requests, path, samples)
            arms[mode, "steps"] = partial(of_steps, sampler, case)
        in_rounds(arms, 1, "served-samples uncounted", log)
        return in_rounds(arms, ROUNDS, "served-samples", log)


def of_requests(path: RequestPath, samples: RequestSamples) -> float:
    """Dispatch's share of the decode steps of some requests together. The first one's code is cold."""
    path.unmeasured()
    kernel = host = 0
    for _ in range(REQUESTS):
        found = path.sampled(samples).decode.samples
        if found is not None:
            kernel, host = kernel + found.kernel, host + found.host
    share = dispatch_share(kernel, host, 0)
    if share is None:
        raise NotMeasurableError("no sample fell into a step of a request")
    return share.value


def of_steps(sampler: StackSampler, case: Case) -> float:
    """Dispatch's share of decode steps in a row."""
    return 1 - sampled(sampler, case, SAMPLED_SECONDS).kernel_share


def judge_served_samples(found: Mapping[Arm, list[float]]) -> list[CheckResult]:
    """A row per mode, paired by round."""
    rows = []
    for mode in dict.fromkeys(mode for mode, _ in found):
        requests, steps = found[mode, "request"], found[mode, "steps"]
        ratios = [a / b if b > 0 else NO_RATIO for a, b in zip(requests, steps, strict=True)]
        shown = (f"{100 * median_interval(values).value:.1f} %" for values in (requests, steps))
        rows.append(
            interval_result(
                f"{NAME}, {mode}",
                BOUND,
                median_interval(ratios),
                least=1 - APART,
                most=1 + APART,
                note=f"{' against '.join(shown)} of decode at batch {BUCKET}",
                numbers={"request_shares": requests, "steps_shares": steps},
            )
        )
    return rows


SERVED_SAMPLES = Check(measure_served_samples, judge_served_samples, ((NAME, BOUND),))
