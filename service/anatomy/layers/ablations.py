"""The layers: which arms isolate each, as text and as a formula, and where none can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.anatomy.layers.operations import Operation
from service.anatomy.layers.setup import Setup
from service.protocol.modes import GradMode
from service.step.device_time import LEAST_VISITS

Rounds = NDArray[np.float64]
"""Seconds per call, round by round."""

_NATIVE = ("dispatcher", "from native", "autocast", "no autocast", "cast", "cast of one", "compute nothing",
           "allocate", "allocate nothing")  # fmt: skip
_PYTHON = ("hollow", "from python", "taped")

HOST_BEHIND = "the host could not queue a replay ahead of the device, which may have waited for it"


@dataclass(frozen=True, slots=True)
class ArmSeconds:
    """Seconds of one operator's arms at one size, less the clock reads and the bare loop."""

    setup: Setup
    operation: Operation
    seconds: Mapping[str, Rounds]

    @classmethod
    def of(cls, setup: Setup, operation: Operation, raw: Mapping[str, Rounds], loop: Rounds) -> ArmSeconds:
        """From `raw` rounds; `loop` is an empty Python loop."""
        seconds = {**raw, "whole": raw["whole"] - loop}
        seconds |= {name: raw[name] - raw["python clock"] for name in _PYTHON}
        seconds |= {name: raw[name] - raw["native clock"] for name in _NATIVE}
        return cls(setup, operation, seconds)

    def __getitem__(self, arm: str) -> Rounds:
        """Its seconds per call, round by round."""
        return self.seconds[arm]

    @property
    def cuda(self) -> bool:
        """Whether kernels run beside the host."""
        return self.setup.device.type == "cuda"

    @property
    def fixed(self) -> Rounds:
        """The operator on no elements, from C++, without an allocation."""
        nothing = self["compute nothing"]
        return nothing if self.operation.loop_out else nothing - self["allocate nothing"]

    @property
    def growing(self) -> Rounds:
        """What a call takes longer at this size than on no elements, without its allocations."""
        computing = self["compute"] if self.operation.loop_out else self["compute"] - self["allocate"]
        return computing - self.fixed


@dataclass(frozen=True, slots=True)
class Ablation:
    """One layer and how it is isolated. `counts`: whether the requested state contains it.

    `why_not` gives the reason where it cannot be isolated, or does not exist, on this device.
    """

    name: str
    experiment: Callable[[ArmSeconds], str]
    seconds: Callable[[ArmSeconds], Rounds]
    counts: Callable[[ArmSeconds], bool] = lambda _: True
    why_not: Callable[[ArmSeconds], str | None] = lambda _: None


def _autocast(r: ArmSeconds) -> Rounds:
    fixed = r["autocast"] - r["no autocast"]
    return fixed + r["cast"] - r["cast of one"] if r.operation.lowered else fixed


def _kernel(r: ArmSeconds) -> Rounds:
    return r["graph"][np.isfinite(r["graph"])] if r.cuda else r.growing


def _no_kernel(r: ArmSeconds) -> str | None:
    return HOST_BEHIND if r.cuda and len(_kernel(r)) < LEAST_VISITS else None


def _grad_text(grad: GradMode) -> str:
    return {"enabled": "grad mode on", "no_grad": "no_grad", "inference_mode": "inference mode"}[grad]


def _given_results(r: ArmSeconds) -> str:
    return "with out=" if r.operation.loop_out else "less its allocations (it has no out=)"


ABLATIONS: tuple[Ablation, ...] = (
    Ablation(
        "python",
        lambda r: (
            "the same statement and torch's own Python around it, with a C function that does nothing in "
            "place of torch's"
        ),
        lambda r: r["hollow"],
    ),
    Ablation(
        "binding",
        lambda r: (
            "inference mode, one element: the call from Python less python, less the call from C++ "
            "(arguments parsed, overload chosen, lock released, result wrapped)"
        ),
        lambda r: r["from python"] - r["hollow"] - r["from native"],
    ),
    Ablation(
        "autocast",
        lambda r: (
            f"{_grad_text(r.setup.state.grad)}, one element, C++: inside autocast less outside"
            + ("; and what it casts at this size less of one element" if r.operation.lowered else "")
        ),
        _autocast,
        counts=lambda r: r.setup.state.autocast,
    ),
    Ablation(
        "autograd",
        lambda r: f"one element, from Python: {_grad_text(r.setup.taped.grad)} less inference mode",
        lambda r: r["taped"] - r["from python"],
        counts=lambda r: r.setup.state.grad != "inference_mode",
    ),
    Ablation(
        "dispatcher",
        lambda r: "inference mode, C++: one pass to a custom operator with an empty kernel",
        lambda r: r["dispatcher"],
    ),
    Ablation(
        "operator",
        lambda r: (
            f"inference mode, no elements, C++: the call {_given_results(r)}, less dispatcher "
            "(further passes, shapes, types, broadcasting)"
        ),
        lambda r: r.fixed - r["dispatcher"],
    ),
    Ablation(
        "allocator",
        lambda r: (
            "C++: new tensors of the results' shapes, each page written once, and freed"
            + ("; out= takes it away" if r.operation.loop_out else "")
        ),
        lambda r: r["allocate"],
    ),
    Ablation(
        "launch",
        lambda r: (
            f"inference mode, C++, the host's time: the call {_given_results(r)} at this size, "
            "less no elements"
        ),
        lambda r: r.growing,
        why_not=lambda r: None if r.cuda else "a CPU runs a kernel where it is called: nothing is launched",
    ),
    Ablation(
        "kernel",
        lambda r: (
            "the device's time per kernel inside a replayed graph of many, queued ahead of the device; "
            "beside the host, not in the sum"
            if r.cuda
            else f"inference mode, C++: the call {_given_results(r)} at this size less no elements"
        ),
        _kernel,
        counts=lambda r: not r.cuda,
        why_not=_no_kernel,
    ),
)
"""From the user's line inwards. Those that count are summed, and compared with the whole call."""
