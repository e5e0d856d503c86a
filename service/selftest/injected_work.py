"""Checks with injected work: the same work inside a real step or outside moves its own part alone.

The parts are those of sampled native stacks: the share of samples in kernels, and the rest, of a step that is
timed without sampling.

Work that takes time also lets the machine's other users into the shared caches, which lengthens the kernels
of the next step whoever did the work. So both arms do all of it: one inside the step, the other between two
steps, neither timed nor sampled. Its length is measured there, in the same rounds and the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from service.measure.cases import Case
from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.selftest.check import Check, NotMeasurableError
from service.selftest.injected_rows import MOVED_KERNEL, MOVED_WORK, bounds, judge_host, judge_kernel
from service.selftest.injected_samples import Work, step_sample
from service.selftest.sampled_dispatch import stack_sampler
from service.step.callables import InjectedWork

ROUNDS = 24
MODES = ("eager", "compiled")
TIMES_LONGER = 8
ELEMENTS = 4000
"""Elements of the short kernel, some 0.4 ms; the long one has `TIMES_LONGER` as many."""

GAMMA_AT = 200.0
"""The argument at which that function takes longest."""

HOST_ITERATIONS = 150_000
"""About 3 ms of Python. A wait for the clock would take its length whatever happened meanwhile."""

Found = dict[tuple[str, str], list[float]]
"""Seconds by mode and arm."""


@dataclass(frozen=True, slots=True)
class InjectionCases:
    """A real step without and with `work` inside."""

    plain: Case
    more: Case
    work: Work


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


def kernel_cases(variants: Variants, mode: str) -> InjectionCases:
    """A kernel made longer: the operator, and with it what the host does for it, is in either step."""

    def injected(elements: int) -> InjectedWork:
        return InjectedWork(kernel=kernel_work(variants.device, elements))

    return InjectionCases(
        plain=variants.case(mode, injected=injected(ELEMENTS)),
        more=variants.case(mode, injected=injected(ELEMENTS * TIMES_LONGER)),
        work=kernel_work(variants.device, ELEMENTS * (TIMES_LONGER - 1)),
    )


def host_cases(variants: Variants, mode: str) -> InjectionCases:
    """Host work added to the step."""
    added = InjectedWork(kernel=host_work)
    return InjectionCases(variants.case(mode), variants.case(mode, injected=added), host_work)


def _measure(
    cases_of: Callable[[Variants, str], InjectionCases], what: str, variants: Variants, log: Log
) -> Found:
    """Both parts of the step of both arms, and the work alone.

    Raises NotMeasurableError on CUDA, and where sampling is forbidden.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA dispatch and kernels are timed apart")
    found: Found = {}
    with stack_sampler() as sampler:
        for mode in (mode for mode in MODES if mode in variants.modes):
            log(f"{mode}, building")
            cases = cases_of(variants, mode)
            arms = {
                "plain": partial(step_sample, sampler, cases.plain, cases.work),
                "more": partial(step_sample, sampler, cases.more, None),
            }
            with variants.isolated():
                seen = in_rounds(arms, ROUNDS, f"{what}/{mode}", log)
            for arm, samples in seen.items():
                found[mode, f"{arm}_kernel"] = [sample.kernel_seconds for sample in samples]
                found[mode, f"{arm}_dispatch"] = [sample.dispatch_seconds for sample in samples]
            found[mode, "added"] = [sample.work_seconds for sample in seen["plain"]]
    return found


KERNEL = Check(partial(_measure, kernel_cases, "kernel"), judge_kernel, bounds(MOVED_KERNEL, "kernel"))
HOST = Check(partial(_measure, host_cases, "host"), judge_host, bounds(MOVED_WORK, "dispatch"))
