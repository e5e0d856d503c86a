"""In place of a `Bench`: steps that are only named, so that the arms of a check run without a clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import torch

from service.measure.cpu_sampler import SamplerError
from service.measure.rounds import OffCpuTime
from service.proof.split import ServedStep
from service.records import Phase
from service.step.callables import InjectedWork


@dataclass(frozen=True, slots=True)
class MadeUpCase:
    """A step of this name. It has no length, and runs nothing but what is injected into it."""

    named: ServedStep
    injected: InjectedWork | None = None

    def steady_seconds(self, steps: int) -> float:
        """None of its own."""
        return 0.0


class MadeUpBench:
    """Steps of `modes` at `batch_sizes`. `refused`: why their thread cannot be sampled."""

    def __init__(
        self,
        modes: Sequence[str] = ("eager", "no_grad", "inference_mode", "compiled"),
        batch_sizes: Sequence[int] = (4, 16, 1),
        device: str = "cpu",
        refused: str | None = None,
    ) -> None:
        self.modes = list(modes)
        self.device = torch.device(device)
        self.settings = SimpleNamespace(cache_folder="cache", batch_sizes=list(batch_sizes))
        self.off_cpu = OffCpuTime()
        self._refused = refused

    @property
    def sampler(self) -> SimpleNamespace:
        """A new one, or the error."""
        if self._refused:
            raise SamplerError(self._refused)
        return SimpleNamespace()

    def case(self, mode: str, bucket: int, phase: Phase = "decode") -> MadeUpCase:
        """A step."""
        return MadeUpCase(ServedStep(mode, phase, bucket))

    def injected_case(self, mode: str, injected: InjectedWork) -> MadeUpCase:
        """A decode step at batch 1."""
        return MadeUpCase(ServedStep(mode, "decode", 1), injected)

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """As it is."""
        yield
