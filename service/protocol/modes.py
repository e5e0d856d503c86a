"""The ladder of inference modes as a table: a sixth mode is one more row.

Pure data, so that the front can name and explain the modes without torch; `service.step.callables` turns a
row into something that runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

GradMode = Literal["enabled", "no_grad", "inference_mode"]
CompileOptions = dict[str, Any]
"""Keyword arguments of `torch.compile`."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a mode really does on one kind of device: its effective name, and the reason where it differs."""

    name: str
    compile: CompileOptions | None = None
    reason: str | None = None
    graph_replay: bool = False


@dataclass(frozen=True, slots=True)
class Mode:
    """One mode: how grad mode is set, what `torch.compile` is given per device, and what the mode removes."""

    name: str
    grad_mode: GradMode
    removes: str
    cuda: Effect
    cpu: Effect

    def effect(self, device_type: str) -> Effect:
        """What this row does on `device_type` ('cpu' or 'cuda')."""
        return self.cuda if device_type == "cuda" else self.cpu


def _plain(name: str, grad_mode: GradMode, removes: str) -> Mode:
    return Mode(name, grad_mode, removes, cuda=Effect(name), cpu=Effect(name))


_FULL: CompileOptions = {"fullgraph": True, "dynamic": False}

LADDER: tuple[Mode, ...] = (
    _plain("eager", "enabled", "nothing: every operator records a tape node and saves tensors"),
    _plain("no_grad", "no_grad", "tape recording; operators still pass the autograd dispatch keys"),
    _plain("inference_mode", "inference_mode", "the autograd dispatch layer, AutogradMeta, version counters"),
    Mode(
        "compiled", "inference_mode", "Python and dispatcher per operator; kernels are fused",
        cuda=Effect("compiled", _FULL), cpu=Effect("compiled", _FULL),
    ),
    Mode(
        "reduce-overhead", "inference_mode", "launches: one CUDA-graph replay per step",
        cuda=Effect("reduce-overhead", {**_FULL, "mode": "reduce-overhead"}, graph_replay=True),
        cpu=Effect(
            "compiled-cpp", {**_FULL, "options": {"cpp_wrapper": True}},
            reason="a CPU has no CUDA graphs; compiled with Inductor's C++ wrapper instead",
        ),
    ),
)  # fmt: skip

MODES: dict[str, Mode] = {mode.name: mode for mode in LADDER}
"""The ladder by name, in its order."""
