"""Checks with injected work: the same work inside a step's clock or outside moves its own number alone.

Work that takes time also lets the machine's other users into the shared caches, which lengthens the kernels
of the next step whoever did the work. So both arms do all of it: one inside the step, the other between two
steps, off the clock. Its length is measured there, in the same rounds and the same state.
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
from service.selftest.injected_samples import Work, floor_sample, step_sample
from service.step.callables import InjectedWork

ROUNDS = 30
MODES = ("eager", "compiled")
TIMES_LONGER = 8
ELEMENTS = 1280
"""Elements of the short kernel; the long one has `TIMES_LONGER` as many, a twin's one."""

GAMMA_AT = 200.0
"""The argument at which that function takes longest."""

HOST_ITERATIONS = 100_000
"""About a millisecond of Python. A wait for the clock would take its length whatever happened meanwhile."""

Found = dict[tuple[str, str], list[float]]
"""Seconds by mode and arm."""


@dataclass(frozen=True, slots=True)
class InjectionCases:
    """A step without and with `work` inside, real and hollow, each built by itself, as calibration does.

    `hollow_work` is what of `work` the longer twin has inside; None: a twin has none of it.
    """

    plain: Case
    more: Case
    plain_twin: Case
    more_twin: Case
    work: Work
    hollow_work: Work | None


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
    """A kernel made longer. The twin's counterpart of either length is the same operator on one element."""

    def injected(elements: int) -> InjectedWork:
        return InjectedWork(kernel=kernel_work(variants.device, elements))

    return InjectionCases(
        plain=variants.case(mode, injected=injected(ELEMENTS)),
        more=variants.case(mode, injected=injected(ELEMENTS * TIMES_LONGER)),
        plain_twin=variants.twin(mode, injected(1)),
        more_twin=variants.twin(mode, injected(1)),
        work=kernel_work(variants.device, ELEMENTS * (TIMES_LONGER - 1)),
        hollow_work=None,
    )


def host_cases(variants: Variants, mode: str) -> InjectionCases:
    """Host work added to the step and to its twin: a twin has all of its model's host work."""
    added = InjectedWork(kernel=host_work)
    return InjectionCases(
        plain=variants.case(mode),
        more=variants.case(mode, injected=added),
        plain_twin=variants.twin(mode),
        more_twin=variants.twin(mode, added),
        work=host_work,
        hollow_work=host_work,
    )


def _measure(
    cases_of: Callable[[Variants, str], InjectionCases], what: str, variants: Variants, log: Log
) -> Found:
    """Steps and floors of both arms, and the work alone. Raises NotMeasurableError on CUDA."""
    if variants.device.type != "cpu":
        raise NotMeasurableError("only on a CPU does the twin's floor separate dispatch from kernels")
    found: Found = {}
    for mode in (mode for mode in MODES if mode in variants.modes):
        log(f"{mode}, building")
        cases = cases_of(variants, mode)
        arms = {
            "plain": partial(step_sample, cases.plain, cases.work),
            "more": partial(step_sample, cases.more, None),
            "plain_floor": partial(floor_sample, cases.plain_twin, cases.hollow_work),
            "more_floor": partial(floor_sample, cases.more_twin, None),
        }
        with variants.isolated():
            seen = in_rounds(arms, ROUNDS, f"{what}/{mode}", log)
        found |= {(mode, arm): [sample.step_seconds for sample in samples] for arm, samples in seen.items()}
        found[mode, "added"] = [sample.work_seconds for sample in seen["plain"]]
    return found


KERNEL = Check(partial(_measure, kernel_cases, "kernel"), judge_kernel, bounds(MOVED_KERNEL, "kernel"))
HOST = Check(partial(_measure, host_cases, "host"), judge_host, bounds(MOVED_WORK, "dispatch"))
