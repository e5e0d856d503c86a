"""The step that probes spoil: the served model's own, with few layers, and buffers of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn

from models.served import Cache, Served
from models.transformer import Transformer
from service.anatomy.errors import StudyError
from service.anatomy.resolve import resolve_bucket
from service.measure.cases import DECODE_POSITION, Bench, Case
from service.protocol.messages import Phase
from service.step.callables import Buffers, allocate

LAYERS = 2
"""So that a compilation takes seconds, and yet one layer is left whole where a fault sits in another."""


@dataclass(frozen=True, slots=True)
class ProbedModel:
    """A step of the served model to put faults into. `model` shares its weights and is not to be changed.

    The model is shortened to `LAYERS` layers where it is one of ours; others are taken whole.
    """

    bench: Bench
    model: Served
    buffers: Buffers

    def copy(self) -> Served:
        """The model once more: modules of its own, to hang a fault into; weights shared."""
        return _own(self.model)

    def layers(self, model: Served) -> nn.ModuleList:
        """The decoder layers of `model`. Raises StudyError where there is no list of layers."""
        for module in model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == model.config.layers:
                return module
        raise StudyError("unsupported_here", "this model has no list of layers: probe one of ours, as tiny")

    def arguments(self, phase: Phase) -> tuple[Tensor, Tensor, Tensor, Cache]:
        """What a step of `phase` is called with; the buffers are set for it."""
        decode = min(DECODE_POSITION, self.model.config.context - 1)
        self.buffers.positions.fill_(decode if phase == "decode" else 0)
        return self.buffers.arguments(phase)

    def served(self, run: Callable[..., object], phase: Phase = "decode") -> Callable[[], object]:
        """A call of `run` with the arguments of `phase`, in inference mode and the served precision."""
        arguments = self.arguments(phase)
        inference = torch.inference_mode()
        lowered = self.bench.precision.autocast
        autocast = torch.autocast(self.bench.device.type, lowered) if lowered else nullcontext()

        def call() -> object:
            with autocast, inference:
                return run(*arguments)

        return call

    def case(self, run: Callable[[], object], phase: Phase = "decode") -> Case:
        """`run`, which takes no arguments, as a step that other studies can look at."""
        return Case("inference_mode", phase, lambda *_: run(), self.buffers)  # type: ignore[arg-type]


def make_probed_model(bench: Bench, batch_size: int) -> ProbedModel:
    """A probed at the bucket of `batch_size`. Raises StudyError where no bucket is that large."""
    bucket = resolve_bucket(bench, batch_size)
    model = _own(bench.model)
    if isinstance(model, Transformer):
        del model.blocks[LAYERS:]
        model.config = replace(model.config, layers=len(model.blocks))
    buffers = allocate(model, [bucket], bench.settings.prefill_chunk, bench.precision.cache)
    return ProbedModel(bench, model, buffers[bucket])


def _own(model: Served) -> Served:
    """Modules of its own around the same tensors: what the memo holds already is not copied."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})
