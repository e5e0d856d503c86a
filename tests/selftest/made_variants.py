"""In place of `Variants`: steps whose lengths are made up, so that a check's arms run without a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

import torch

from models.config import CONFIGS, Config
from service.measure.isolation import OffCpuTime
from service.selftest.cross_check_widths import bytes_read
from service.selftest.injected_samples import Sample
from service.step.callables import InjectedWork
from service.step.precision import PRECISIONS
from tests.selftest.samples import JITTER, LADDER

TINY = CONFIGS["tiny"]
SECONDS_PER_BYTE = 1e-10


@dataclass(frozen=True, slots=True)
class MadeUpWork:
    """Injected work that takes `seconds`, by what is made up."""

    seconds: float

    def __call__(self) -> None:
        """Nothing: no clock is read."""


@dataclass(slots=True, eq=False)
class MadeUpCase:
    """A step of `mode` that takes `seconds`, within half a percent."""

    mode: str
    seconds: float
    injected: InjectedWork | None
    random: Random

    def call_seconds(self, clock: object = None) -> float:
        return self.seconds * (1 + self.random.uniform(-JITTER, JITTER))

    def steady_seconds(self, steps: int = 5, pick: Callable[[list[float]], float] = median) -> float:
        return pick([self.call_seconds() for _ in range(steps)])


class MadeUpVariants:
    """Floors fall with the modes; a real step is its floor and what it reads.

    `error` changes the seconds of a step: it gets mode, width, injected work, and whether the step is hollow.
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
        seconds = LADDER[mode] + (0.0 if hollow else SECONDS_PER_BYTE * bytes_read(self, config))  # type: ignore[arg-type]
        if injected is not None and isinstance(injected.kernel, MadeUpWork):
            seconds += injected.kernel.seconds
        seconds = self._error(seconds, mode=mode, width=config.width, injected=injected, hollow=hollow)
        return MadeUpCase(mode, seconds, injected, self._random)

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


def made_up_sample(case: Any, beside: MadeUpWork | None) -> Sample:
    """In place of `step_sample` and `floor_sample`."""
    work = beside.seconds if beside else 0.0
    return Sample(case.call_seconds() + work, work)
