"""In place of `Variants`: steps whose lengths are made up, so that a check's arms run without a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from statistics import median

import torch

from models.config import CONFIGS, Config
from service.measure.isolation import OffCpuTime
from service.selftest.injected_samples import Arm, Sample, TimedWork
from service.selftest.width_family import bytes_read
from service.step.callables import InjectedWork
from service.step.native.stacks import SampledSteps
from service.step.precision import PRECISIONS
from tests.selftest.samples import JITTER, LADDER

TINY = CONFIGS["tiny"]
SECONDS_PER_BYTE = 1e-10


@dataclass(frozen=True, slots=True)
class MadeUpWork:
    """Injected work that takes this long, by what is made up."""

    kernel_seconds: float = 0.0
    host_seconds: float = 0.0

    def __call__(self) -> None:
        """Nothing: no clock is read."""


def made_up(injected: InjectedWork | None) -> MadeUpWork:
    """What is injected, without the clock around it."""
    work = injected.work if isinstance(injected, TimedWork) else injected
    return work if isinstance(work, MadeUpWork) else MadeUpWork()


@dataclass(slots=True, eq=False)
class MadeUpCase:
    """A step of `mode`: `dispatch_seconds` and `kernel_seconds` in a row, within half a percent."""

    mode: str
    dispatch_seconds: float
    kernel_seconds: float
    injected: InjectedWork | None
    random: Random

    def call_seconds(self, clock: object = None) -> float:
        seconds = self.dispatch_seconds + self.kernel_seconds
        return seconds * (1 + self.random.uniform(-JITTER, JITTER))

    def steady_seconds(self, steps: int = 5, pick: Callable[[list[float]], float] = median) -> float:
        return pick([self.call_seconds() for _ in range(steps)])


class MadeUpVariants:
    """Floors fall with the modes; a real step has its floor's dispatch, and kernels by what it reads.

    `error` changes a step's dispatch: it gets mode, width, injected work, and whether the step is hollow.
    """

    def __init__(self, error: Callable[..., float] = lambda seconds, **step: seconds) -> None:
        self.modes = list(LADDER)
        self.device = torch.device("cpu")
        self.config: Config = TINY
        self.precision = PRECISIONS["float32"]
        self.cpus = [0]
        self.off_cpu = OffCpuTime()
        self._error = error
        self._random = Random("variants")

    def case(
        self, mode: str, config: Config | None = None, injected: InjectedWork | None = None
    ) -> MadeUpCase:
        config = config or self.config
        hollow = config.context != self.config.context
        dispatch = LADDER[mode]
        kernel = 0.0 if hollow else SECONDS_PER_BYTE * bytes_read(self, config)  # type: ignore[arg-type]
        work = made_up(injected)
        dispatch += work.host_seconds
        kernel += work.kernel_seconds
        dispatch = self._error(dispatch, mode=mode, width=config.width, injected=injected, hollow=hollow)
        return MadeUpCase(mode, dispatch, kernel, injected, self._random)

    def twin(self, mode: str, injected: InjectedWork | None = None, width: int = 16) -> MadeUpCase:
        return self.case(mode, TINY.hollow(width), injected)

    def floor_seconds(
        self, twin: MadeUpCase, samples: int = 3, pick: Callable[[list[float]], float] = median
    ) -> float:
        return twin.steady_seconds(samples, pick)

    def weights_bytes(self, config: Config) -> int:
        return config.width * config.width * 100

    @contextmanager
    def isolated(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class MadeUpSampling:
    """In place of sampled stacks. These shares of kernels and of dispatch are classed as the other part."""

    kernel_as_host: float = 0.0
    host_as_kernel: float = 0.0

    def sampled(
        self, sampler: object, case: MadeUpCase, seconds: float, beside: object = None
    ) -> SampledSteps:
        kernel = case.kernel_seconds * (1 - self.kernel_as_host) + case.dispatch_seconds * self.host_as_kernel
        share = kernel / (case.kernel_seconds + case.dispatch_seconds)
        return SampledSteps(share, 100, case.call_seconds())

    def step_sample(self, sampler: object, arm: Arm) -> Sample:
        found = self.sampled(sampler, arm.case, 0.1)  # type: ignore[arg-type]
        work = made_up(arm.inside)
        return Sample(found.kernel_seconds, found.dispatch_seconds, work.kernel_seconds + work.host_seconds)
