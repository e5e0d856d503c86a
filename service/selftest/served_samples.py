"""Check of the shares that a running service answers with, beside samples taken in this process.

Both run the same requests in turn, on the cores of the engine, which idles while this process samples. Here
a minimal loop runs the steps, and the check tells the sampler which one runs: nothing that serving keeps of
its samples (their labels, the newest of each step, what an answer makes of them) is in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import msgspec

from service.front.settings import Settings
from service.measure.rounds import Log, in_rounds
from service.protocol.messages import Phase
from service.protocol.splits import SampleCounts
from service.selftest.check import Check, NotMeasurableError
from service.selftest.checks import NEW_TOKENS
from service.selftest.results import CheckResult, difference_of_shares, interval_result
from service.selftest.running_service import RunningService

BUCKET = 1
ROUNDS = 8
MODES = ("eager", "compiled")
APART = 0.05
NAME = "kernel share that a service answers with less that in process"
BOUND = f"± {APART}"


class Kind(NamedTuple):
    """Requests whose answer has the share of `phase`, and for how long a round has them, one at least."""

    name: str
    phase: Phase
    new_tokens: int
    sample: bool
    seconds: float


KINDS = (
    Kind("traffic", "decode", NEW_TOKENS, False, 2.0),
    Kind("traffic", "prefill", 1, True, 1.0),
    Kind("sampled request", "decode", 384, True, 0.0),
)
"""In this order: what is sampled faster is in the newest samples of the traffic that follows."""


class Share(NamedTuple):
    """The kernels' share of a step, and the samples of kernel and host that it rests on."""

    kernel: float
    samples: int


class Requests(Protocol):
    """Requests in this process, such as `service.selftest.sampled_requests.SampledRequests`."""

    def run(self, mode: str, new_tokens: int, seconds: float) -> dict[Phase, SampleCounts]:
        """The samples of both phases of requests in a row for so long, at least of one."""


Arm = tuple[Kind, str, str]
"""Kind, mode, and `service` or `process`."""


def served_samples_check(settings: Settings) -> Check[RunningService, Arm, Share]:
    """The check, with steps in this process that are built of `settings`."""

    def measure(service: RunningService, log: Log) -> dict[Arm, list[Share]]:
        """Shares by round; of traffic only the last answer's, which rests on what all before it left.

        Raises NotMeasurableError where the service does not sample, or too few samples fall into a request.
        """
        modes = [mode for mode in MODES if mode in service.modes]
        with service.connection() as connection:
            if why := json.loads(connection.get("/v1/modes")[1])["engine"]["no_samples"]:
                raise NotMeasurableError(why)
        # Only now: the other checks over HTTP send their requests from a process without torch.
        from service.selftest.sampled_requests import SampledRequests

        log("building steps in this process")
        alone = msgspec.structs.replace(settings.engine_settings(""), batch_sizes=[BUCKET])
        requests = SampledRequests(alone, service.cpus, modes)
        found: dict[Arm, list[Share]] = {}
        for kind in KINDS:
            arms: dict[Arm, Callable[[], Share]] = {}
            for mode in modes:
                arms[kind, mode, "service"] = partial(answered, service, kind, mode)
                arms[kind, mode, "process"] = partial(here, requests, kind, mode)
            found |= in_rounds(arms, ROUNDS, f"served/{kind.name}/{kind.phase}", log)
        return {
            arm: shares[-1:] if (arm[0].name, arm[2]) == ("traffic", "service") else shares
            for arm, shares in found.items()
        }

    return Check(measure, judge_served, ((NAME, BOUND),))


def answered(service: RunningService, kind: Kind, mode: str) -> Share:
    """What the last of the requests of a round answers. Raises NotMeasurableError where it has no samples of
    its own although it should.
    """
    # A connection of their own: the service closes one that idles while this process runs steps.
    with service.connection() as connection:
        until = perf_counter() + kind.seconds
        timings = connection.generate(mode, kind.new_tokens, sample=kind.sample)
        while perf_counter() < until:
            timings = connection.generate(mode, kind.new_tokens, sample=kind.sample)
    phase: Mapping[str, Any] = timings[kind.phase]
    of = "traffic" if kind.name == "traffic" else "request"
    if phase["samples_of"] != of:
        raise NotMeasurableError(f"a request of {kind.new_tokens} tokens in {mode} has too few samples")
    samples = phase["kernel_samples"] + phase["host_samples"]
    return Share(phase["kernel_seconds"] / phase["wall_seconds"], samples)


def here(requests: Requests, kind: Kind, mode: str) -> Share:
    """Of requests in this process, which are sampled more often, and so for less time."""
    counts = requests.run(mode, kind.new_tokens, kind.seconds / 2)[kind.phase]
    samples = counts.kernel + counts.host
    return Share(counts.kernel / max(samples, 1), samples)


def judge_served(found: Mapping[Arm, list[Share]]) -> list[CheckResult]:
    """Per kind and mode, the difference of the shares, all rounds together."""
    return [
        _row(kind, mode, shares, found[kind, mode, "process"])
        for (kind, mode, where), shares in found.items()
        if where == "service"
    ]


def _row(kind: Kind, mode: str, served: list[Share], own: list[Share]) -> CheckResult:
    (count, total), (other, others) = (_together(shares) for shares in (served, own))
    return interval_result(
        f"{NAME}: {kind.name}, {mode}, {kind.phase}, batch {BUCKET}",
        BOUND,
        difference_of_shares(count, total, other, others),
        least=-APART,
        most=APART,
        unit="share",
        note=f"{count / total:.3f} of {total:,} samples, {other / others:.3f} of {others:,} in process",
        numbers={"service": [share.kernel for share in served], "process": [share.kernel for share in own]},
    )


def _together(shares: list[Share]) -> tuple[float, int]:
    return sum(share.kernel * share.samples for share in shares), sum(share.samples for share in shares)
