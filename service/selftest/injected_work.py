"""Checks with injected work: the same work inside a real step or outside moves its own part alone.

The parts are those of sampled native stacks: the share of samples in kernels, and the rest, of the sampled
steps.

Work that takes time also lets the machine's other users into the shared caches, which lengthens the kernels
of the next step whoever did the work. So both arms do all of it: one inside the step, the other between two
steps, neither timed nor sampled. What was added is what the work inside took, by its own clock: the same
iterations of the interpreter take up to 1.16 times as long in a step as between two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.selftest.check import Check, NotMeasurableError
from service.selftest.injected_rows import MOVED_KERNEL, MOVED_WORK, bounds, judge_host, judge_kernel
from service.selftest.injected_samples import Arm, TimedWork, Work, step_sample
from service.selftest.sampled_dispatch import stack_sampler

ROUNDS = 24
MODES = ("eager", "compiled")
TIMES_LONGER = 8
ELEMENTS = 4000
"""Elements of the short kernel, some 0.4 ms; the long one has `TIMES_LONGER` as many."""

GAMMA_AT = 200.0
"""The argument at which that function takes longest."""

HOST_ITERATIONS = 150_000
"""About 2 ms of Python. A wait for the clock would take its length whatever happened meanwhile."""

Found = dict[tuple[str, str], list[float]]
"""Seconds by mode and arm."""


@dataclass(frozen=True, slots=True)
class Arms:
    """A real step with work beside it, and with that inside."""

    plain: Arm
    more: Arm


def kernel_work(device: torch.device, elements: int) -> Work:
    """One operator whose time is in its kernel: the incomplete gamma function, about 0.1 µs per element.

    It reads one element over and over and writes little, so that its length does not depend on the caches.
    """
    shape = torch.full((1,), GAMMA_AT, device=device).expand(elements)
    at = shape.clone()[:1].expand(elements)
    out = torch.empty(elements, device=device)
    return lambda: torch.igamma(shape, at, out=out)


def host_work() -> None:
    """A fixed number of iterations of the interpreter."""
    for _ in range(HOST_ITERATIONS):
        pass


def kernel_arms(variants: Variants, mode: str) -> Arms:
    """A kernel made longer: the operator, and with it what the host does for it, is in either step."""

    def arm(elements: int, beside: Work | None) -> Arm:
        inside = TimedWork(kernel_work(variants.device, elements))
        return Arm(variants.case(mode, injected=inside), inside, beside)

    rest = kernel_work(variants.device, ELEMENTS * (TIMES_LONGER - 1))
    return Arms(arm(ELEMENTS, rest), arm(ELEMENTS * TIMES_LONGER, None))


def host_arms(variants: Variants, mode: str) -> Arms:
    """Host work added to the step."""
    added = TimedWork(host_work)
    return Arms(
        Arm(variants.case(mode), None, host_work), Arm(variants.case(mode, injected=added), added, None)
    )


def _measure(arms_of: Callable[[Variants, str], Arms], what: str, variants: Variants, log: Log) -> Found:
    """Both parts of the step of both arms, and what the work inside took more.

    Raises NotMeasurableError on CUDA, and where sampling is forbidden.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA dispatch and kernels are timed apart")
    found: Found = {}
    with stack_sampler() as sampler:
        for mode in (mode for mode in MODES if mode in variants.modes):
            log(f"{mode}, building")
            made = arms_of(variants, mode)
            arms = {
                "plain": partial(step_sample, sampler, made.plain),
                "more": partial(step_sample, sampler, made.more),
            }
            with variants.isolated():
                seen = in_rounds(arms, ROUNDS, f"{what}/{mode}", log)
            for arm, samples in seen.items():
                found[mode, f"{arm}_kernel"] = [sample.kernel_seconds for sample in samples]
                found[mode, f"{arm}_dispatch"] = [sample.dispatch_seconds for sample in samples]
            found[mode, "added"] = [
                more.inside_seconds - plain.inside_seconds
                for plain, more in zip(seen["plain"], seen["more"], strict=True)
            ]
    return found


KERNEL = Check(partial(_measure, kernel_arms, "kernel"), judge_kernel, bounds(MOVED_KERNEL, "kernel"))
HOST = Check(partial(_measure, host_arms, "host"), judge_host, bounds(MOVED_WORK, "dispatch"))
