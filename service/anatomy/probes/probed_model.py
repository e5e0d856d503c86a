"""The model that probes put faults into: the served one, with few layers and separate buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

from models.served import Cache, Served
from models.transformer import Transformer
from service.anatomy.errors import StudyError
from service.anatomy.resolve import resolve_bucket
from service.measure.cases import Bench, Case
from service.protocol.messages import Phase
from service.protocol.modes import GradMode
from service.step.buffers import Buffers, allocate
from service.step.untimed import DECODE_POSITION

Result = TypeVar("Result")

_GRAD_MODES: dict[GradMode, Callable[[], AbstractContextManager[object]]] = {
    "enabled": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}

LAYERS = 2
"""Few, so that a compilation takes seconds; two, so that one layer has no fault."""


@dataclass(frozen=True, slots=True)
class ProbedModel:
    """A copy of the served model that shares its weights; faults go into copies of `model`, not into it.

    Our own models are shortened to `LAYERS` layers; others keep theirs.
    """

    bench: Bench
    model: Served
    buffers: Buffers

    def copy(self) -> Served:
        """New modules to put a fault into, with shared weights."""
        return _with_shared_weights(self.model)

    def layers(self, model: Served) -> nn.ModuleList:
        """The decoder layers of `model`. Raises StudyError where there is no list of layers."""
        for module in model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == model.config.layers:
                return module
        raise StudyError(
            "unsupported_here", "this model has no ModuleList of its layers: use one of ours, such as tiny"
        )

    def arguments(self, phase: Phase) -> tuple[Tensor, Tensor, Tensor, Cache]:
        """The arguments of a step of `phase`; sets the buffers for it."""
        decode = min(DECODE_POSITION, self.model.config.context - 1)
        self.buffers.positions.fill_(decode if phase == "decode" else 0)
        return self.buffers.arguments(phase)

    def served(
        self, run: Callable[..., Result], phase: Phase = "decode", grad_mode: GradMode = "inference_mode"
    ) -> Callable[[], Result]:
        """A call of `run` with the arguments of `phase`, in `grad_mode` and the served precision."""
        arguments = self.arguments(phase)
        grad = _GRAD_MODES[grad_mode]()
        lowered = self.bench.precision.autocast
        autocast = torch.autocast(self.bench.device.type, lowered) if lowered else nullcontext()

        def call() -> Result:
            with autocast, grad:
                return run(*arguments)

        return call

    def case(self, run: Callable[[], object], phase: Phase = "decode") -> Case:
        """`run`, which takes no arguments, as a case for other studies."""
        return Case("inference_mode", phase, lambda *_: run(), self.buffers)  # type: ignore[arg-type]


def make_probed_model(bench: Bench, batch_size: int) -> ProbedModel:
    """A model to probe at the bucket of `batch_size`. Raises StudyError where no bucket is that large."""
    bucket = resolve_bucket(bench, batch_size)
    model = _with_shared_weights(bench.model)
    if isinstance(model, Transformer):
        del model.blocks[LAYERS:]
        model.config = replace(model.config, layers=len(model.blocks))
    buffers = allocate(model, [bucket], bench.settings.prefill_chunk, bench.precision.cache, symbolic=False)
    return ProbedModel(bench, model, buffers[bucket])


def _with_shared_weights(model: Served) -> Served:
    """A deep copy that shares tensors: what is in the memo is not copied."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})
