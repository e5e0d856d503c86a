"""Turns a row of the ladder into a callable step, compiled in isolation where the row compiles."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config

from models.served import Cache
from service.modes import GradMode, Mode
from service.step.graphs import captured_step, record_cuda_graph
from service.step.loaded_model import Precision
from service.step.packages import packaged_step

Step = Callable[[Tensor, Tensor, Tensor, Cache], tuple[Tensor, Tensor]]
"""(tokens, positions, last, cache) → (logits, greedy token); shapes as in `Served.forward`.

Where a graph is replayed, the next call of any step may overwrite the result: copy what is to last."""

_CONTEXTS: dict[GradMode, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}

InjectedWork = Callable[[], object]
"""Extra work inside every step, for checks only: no request can add any."""


def build_step(
    mode: Mode, model: nn.Module, injected: InjectedWork | None = None, precision: Precision | None = None
) -> Step:
    """A new callable for `mode`: it shares weights with the other ones, but no compiled entry.

    Neither `injected` nor a `precision` without autocast leaves any code in a step that does not use it.
    """
    device_type = next(model.parameters()).device.type
    effect = mode.effect(device_type)
    if effect.package is not None:
        step = packaged_step(model, effect.package)
    else:
        step = _forward(model, f"step_{mode.name}")
    if effect.compile is not None:
        step = torch.compile(step, **effect.compile)
        if effect.freezes:
            step = _frozen(step)
    if effect.captured:
        step = captured_step(step, record_cuda_graph)
    if injected is not None:
        step = _with_injected_work(step, injected)
    step = _taped(step) if mode.grad_mode == "enabled" else _within(_CONTEXTS[mode.grad_mode](), step)
    if precision is not None and precision.autocast is not None:
        step = _within(torch.autocast(device_type, precision.autocast), step)
    return _replayed(step) if effect.graph_replay and not effect.captured else step


def _forward(model: nn.Module, name: str) -> Step:
    """The model's forward with a code object of its own: entries of one share a recompile limit."""

    def forward(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = model(tokens, positions, last, cache)
        return result

    code = forward.__code__.replace(co_name=name)
    return types.FunctionType(code, forward.__globals__, name, forward.__defaults__, forward.__closure__)


def _frozen(run: Step) -> Step:
    """`run`, compiled at its first call with constant weights: torch.compile's options apply too late."""
    compiled = False

    def frozen(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        nonlocal compiled
        if compiled:
            return run(tokens, positions, last, cache)
        with inductor_config.patch(freezing=True):
            result = run(tokens, positions, last, cache)
        compiled = True
        return result

    return frozen


def _within(context: AbstractContextManager[Any], run: Step) -> Step:
    """`run` inside `context`, one object for all steps: making a new one costs more than entering it."""

    def within(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        with context:
            return run(tokens, positions, last, cache)

    return within


def _taped(run: Step) -> Step:
    """Grad mode on. The tape is freed inside the step, and so inside its timed call, as part of its cost."""

    grad_mode = torch.enable_grad()

    def taped(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        with grad_mode:
            logits, greedy = run(tokens, positions, last, cache)
            return logits.detach(), greedy

    return taped


def _replayed(run: Step) -> Step:
    """Mark each call as a new step for CUDA-graph trees, which may then reuse the last one's outputs."""

    def replayed(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        torch.compiler.cudagraph_mark_step_begin()
        return run(tokens, positions, last, cache)

    return replayed


def _with_injected_work(run: Step, injected: InjectedWork) -> Step:
    """`run`, then the injected work: in the step's grad mode and inside its timed call."""

    def with_injected_work(
        tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache
    ) -> tuple[Tensor, Tensor]:
        result = run(tokens, positions, last, cache)
        injected()
        return result

    return with_injected_work
