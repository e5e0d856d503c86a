"""Study of one operator's layers: µs of each by ablation, and whether their sum is the measured whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from service.anatomy.common import Report, attached_note
from service.anatomy.layers.variants import (
    OPERATIONS,
    Operation,
    Setup,
    State,
    load_loops,
    python_variant,
    time_variants,
    variants_of,
)
from service.measure.cases import AnyBench
from service.modes import GradMode
from service.statistics.intervals import Interval, median_interval
from service.step.device_time import LEAST_SAMPLES

AGREEMENT = 0.15
"""Largest difference of sum and whole, as a share of the whole."""

OperationName = Literal["matmul", "add", "layer_norm", "mul", "exp", "relu", "sum", "softmax", "transpose"]
Size = Annotated[int, msgspec.Meta(ge=1, le=4096)]


class LayersArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operators on float tensors of [size, size], in a state of torch. `autocast` is to bfloat16; None: as
    the service's precision has it. `rounds` are the repeats of an interval.
    """

    operations: Annotated[list[OperationName], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["matmul", "add", "layer_norm"]
    )
    sizes: Annotated[list[Size], msgspec.Meta(min_length=1, max_length=8)] = msgspec.field(
        default_factory=lambda: [8, 64, 256, 512]
    )
    grad: GradMode = "enabled"
    autocast: bool | None = None
    rounds: Annotated[int, msgspec.Meta(ge=6, le=500)] = 15


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of one call, and the experiment that isolates it.

    `in_sum` False: it is switched off here, or runs beside the host. `microseconds` None: see `why_not`.
    """

    name: str
    microseconds: Interval | None
    in_sum: bool
    experiment: str
    why_not: str | None


class Agreeing(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of a call's parts beside the whole, measured apart. `agreement` is sum / whole.

    `agrees`: it is within AGREEMENT of 1. On CUDA both are of the host's time.
    """

    sum_microseconds: Interval
    whole_microseconds: Interval
    agreement: Interval
    agrees: bool


class OperationLayers(Agreeing, frozen=True, kw_only=True):
    operation: str
    statement: str
    size: int
    layers: list[Layer]


class LayersFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The layer table. Calls follow each other: within a model each costs more."""

    device: str
    dtype: str
    threads: int
    grad: GradMode
    autocast: bool
    rounds: int
    operations: list[OperationLayers]
    notes: list[str] = []


def measure_layers(bench: AnyBench, arguments: LayersArguments, report: Report) -> LayersFinding:
    """Time every variant of every operator and size. Raises StudyError without a C++ compiler."""
    autocast = bench.precision.autocast is not None if arguments.autocast is None else arguments.autocast
    loops = load_loops(bench.settings.cache_folder, report)
    setup = Setup(bench.device, bench.precision.weights, State(arguments.grad, autocast), loops)
    chosen = [
        (OPERATIONS[name], size)
        for name in dict.fromkeys(arguments.operations)
        for size in sorted(set(arguments.sizes))
    ]
    notes = attached_note()
    timed = time_operations(setup, chosen, arguments.rounds, report)
    return LayersFinding(
        device=setup.device.type,
        dtype=bench.precision.name,
        threads=torch.get_num_threads(),
        grad=arguments.grad,
        autocast=autocast,
        rounds=arguments.rounds,
        operations=[describe(seconds, size) for seconds, size in timed],
        notes=notes,
    )


def time_operations(
    setup: Setup, chosen: list[tuple[Operation, int]], rounds: int, report: Report
) -> list[tuple[VariantSeconds, int]]:
    variants = {("", 0, "loop"): python_variant("pass", {})}
    for operation, size in chosen:
        for key, variant in variants_of(setup, operation, size).items():
            variants[operation.name, size, key] = variant
    timed = time_variants(variants, setup.device, rounds, report)
    found: dict[tuple[str, int], dict[str, Rounds]] = {}
    for (name, size, key), values in timed.items():
        found.setdefault((name, size), {})[key] = np.array(values)
    loop = found["", 0]["loop"]
    return [
        (VariantSeconds.of(setup, operation, found[operation.name, size], loop), size)
        for operation, size in chosen
    ]


def describe(seconds: VariantSeconds, size: int) -> OperationLayers:
    summed = [each for each in ABLATIONS if each.counts(seconds) and each.why_not(seconds) is None]
    total = np.sum([ablation.seconds(seconds) for ablation in summed], axis=0)
    agreement = _median(total / seconds["whole"])
    return OperationLayers(
        operation=seconds.operation.name,
        statement=seconds.operation.statement,
        size=size,
        layers=[_layer(ablation, seconds, ablation in summed) for ablation in ABLATIONS],
        sum_microseconds=_median(total * 1e6),
        whole_microseconds=_median(seconds["whole"] * 1e6),
        agreement=agreement,
        agrees=abs(agreement.value - 1) <= AGREEMENT,
    )


def _layer(ablation: Ablation, seconds: VariantSeconds, in_sum: bool) -> Layer:
    why_not = ablation.why_not(seconds)
    return Layer(
        name=ablation.name,
        in_sum=in_sum,
        experiment=ablation.experiment.format(**_words(seconds)),
        why_not=why_not,
        microseconds=None if why_not else _median(ablation.seconds(seconds) * 1e6),
    )


def _median(rounds: Rounds) -> Interval:
    return median_interval(rounds.tolist())


Rounds = NDArray[np.float64]
"""Seconds per call, round by round."""

_NATIVE = ("dispatcher", "from native", "autocast", "no autocast", "cast", "cast of one", "compute nothing",
           "allocate", "allocate nothing")  # fmt: skip
_PYTHON = ("python alone", "from python", "taped")

NO_LAUNCH = "a CPU runs a kernel where it is called: nothing is launched"
HOST_BEHIND = "the host could not queue a replay ahead of the device, which may have waited for it"


@dataclass(frozen=True, slots=True)
class VariantSeconds:
    """Seconds of one operator's variants at one size, less the clock reads and the bare loop."""

    setup: Setup
    operation: Operation
    seconds: Mapping[str, Rounds]

    @classmethod
    def of(
        cls, setup: Setup, operation: Operation, raw: Mapping[str, Rounds], loop: Rounds
    ) -> VariantSeconds:
        """From `raw` rounds; `loop` is an empty Python loop."""
        seconds = {**raw, "whole": raw["whole"] - loop}
        seconds |= {name: raw[name] - raw["python clock"] for name in _PYTHON}
        seconds |= {name: raw[name] - raw["native clock"] for name in _NATIVE}
        return cls(setup, operation, seconds)

    def __getitem__(self, variant: str) -> Rounds:
        return self.seconds[variant]

    @property
    def cuda(self) -> bool:
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
    """One layer and how it is isolated, in the words of `_words`. `counts`: whether the state contains it.

    `why_not` gives the reason where it cannot be isolated, or does not exist, on this device.
    """

    name: str
    experiment: str
    seconds: Callable[[VariantSeconds], Rounds]
    counts: Callable[[VariantSeconds], bool] = lambda _: True
    why_not: Callable[[VariantSeconds], str | None] = lambda _: None


STATES = {"enabled": "grad mode on", "no_grad": "no_grad", "inference_mode": "inference mode"}


def _words(r: VariantSeconds) -> dict[str, str]:
    has_out = r.operation.loop_out is not None
    call = f"the call {'with out=' if has_out else 'less its allocations (it has no out=)'}"
    on_device = (
        "the device's time per kernel inside a replayed graph of many, queued ahead of the device; not in "
        "the sum, because it runs beside the host"
    )
    return {
        "grad": STATES[r.setup.state.grad],
        "taped": STATES[r.setup.taped.grad],
        "call": call,
        "casts": "; and what it casts at this size less of one element" if r.operation.lowered else "",
        "out": "; out= takes it away" if has_out else "",
        "kernel": on_device if r.cuda else f"inference mode, C++: {call} at this size less no elements",
    }


def _autocast(r: VariantSeconds) -> Rounds:
    fixed = r["autocast"] - r["no autocast"]
    return fixed + r["cast"] - r["cast of one"] if r.operation.lowered else fixed


def _kernel(r: VariantSeconds) -> Rounds:
    return r["graph"][np.isfinite(r["graph"])] if r.cuda else r.growing


ABLATIONS: tuple[Ablation, ...] = (
    Ablation("python", "the same statement and torch's own Python around it, with a C function that does "
             "nothing in place of torch's",
             lambda r: r["python alone"]),
    Ablation("binding", "inference mode, one element: the call from Python less python, less the call from "
             "C++ (arguments parsed, overload chosen, lock released, result wrapped)",
             lambda r: r["from python"] - r["python alone"] - r["from native"]),
    Ablation("autocast", "{grad}, one element, C++: inside autocast less outside{casts}", _autocast,
             counts=lambda r: r.setup.state.autocast),
    Ablation("autograd", "one element, from Python: {taped} less inference mode",
             lambda r: r["taped"] - r["from python"],
             counts=lambda r: r.setup.state.grad != "inference_mode"),
    Ablation("dispatcher", "inference mode, C++: one pass to a custom operator with an empty kernel",
             lambda r: r["dispatcher"]),
    Ablation("operator", "inference mode, no elements, C++: {call}, less dispatcher (further passes, shapes, "
             "types, broadcasting)",
             lambda r: r.fixed - r["dispatcher"]),
    Ablation("allocator", "C++: new tensors of the results' shapes, each page written once, and freed{out}",
             lambda r: r["allocate"]),
    Ablation("launch", "inference mode, C++, the host's time: {call} at this size, less no elements",
             lambda r: r.growing,
             why_not=lambda r: None if r.cuda else NO_LAUNCH),
    Ablation("kernel", "{kernel}", _kernel,
             counts=lambda r: not r.cuda,
             why_not=lambda r: HOST_BEHIND if r.cuda and len(_kernel(r)) < LEAST_SAMPLES else None),
)  # fmt: skip
"""From the user's line inwards. Those that count are summed, and compared with the whole call."""
