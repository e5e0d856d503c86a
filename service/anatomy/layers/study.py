"""Study of one operator's layers: µs of each by ablation, and whether their sum is the measured whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np
import torch

from service.anatomy.layers.ablations import ABLATIONS, Ablation, ArmSeconds, Rounds
from service.anatomy.layers.arms import State, python_arm, time_arms
from service.anatomy.layers.loops import load_loops
from service.anatomy.layers.operations import OPERATIONS, Operation
from service.anatomy.layers.setup import Setup, arms_of
from service.anatomy.profiler_note import attached_note
from service.anatomy.progress import Report
from service.measure.cases import Bench
from service.protocol.modes import GradMode
from service.statistics.intervals import Interval, median_interval

AGREEMENT = 0.15
"""Largest difference of sum and whole, as a share of the whole."""

OperationName = Literal["matmul", "add", "layer_norm", "mul", "exp", "relu", "sum", "softmax", "transpose"]
Size = Annotated[int, msgspec.Meta(ge=1, le=4096)]


class LayersArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operators on float tensors of [size, size], in a state of torch.

    `grad`: grad mode on (`enabled`), off (`no_grad`), or `inference_mode`. `autocast` to bfloat16; None: as
    the service's precision has it. `rounds` are the repeats behind every interval.
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

    `in_sum` False: it is switched off here, or runs beside the host. `microseconds` None: it cannot be
    isolated on this device, and `why_not` has the reason.
    """

    name: str
    microseconds: Interval | None
    in_sum: bool
    experiment: str
    why_not: str | None


class OperationLayers(msgspec.Struct, frozen=True, kw_only=True):
    """One operator at one size. `agreement` is sum / whole; on CUDA both are of the host's time."""

    operation: str
    statement: str
    size: int
    layers: list[Layer]
    sum_microseconds: Interval
    whole_microseconds: Interval
    agreement: Interval
    agrees: bool


class LayersFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The layer table.

    Calls follow each other directly: within a model, with other operators and memory between, each costs
    more. `notes` say what else was at work.
    """

    device: str
    dtype: str
    threads: int
    grad: GradMode
    autocast: bool
    rounds: int
    operations: list[OperationLayers]
    notes: list[str] = []


def measure_layers(bench: Bench, arguments: LayersArguments, report: Report) -> LayersFinding:
    """Time every arm of every operator and size in interleaved rounds.

    Raises StudyError where there is no C++ compiler.
    """
    autocast = bench.precision.autocast is not None if arguments.autocast is None else arguments.autocast
    loops = load_loops(bench.settings.cache_folder, report)
    setup = Setup(bench.device, bench.precision.weights, State(arguments.grad, autocast), loops)
    chosen = [
        (OPERATIONS[name], size)
        for name in dict.fromkeys(arguments.operations)
        for size in sorted(set(arguments.sizes))
    ]
    notes = attached_note()
    return LayersFinding(
        device=setup.device.type,
        dtype=bench.precision.name,
        threads=torch.get_num_threads(),
        grad=arguments.grad,
        autocast=autocast,
        rounds=arguments.rounds,
        operations=[describe(*found) for found in time_operations(setup, chosen, arguments.rounds, report)],
        notes=notes,
    )


def time_operations(
    setup: Setup, chosen: list[tuple[Operation, int]], rounds: int, report: Report
) -> Iterator[tuple[ArmSeconds, int]]:
    """Every operator and size of `chosen`, in the same rounds."""
    arms = {("", 0, "loop"): python_arm("pass", {})}
    for operation, size in chosen:
        arms |= {(operation.name, size, key): arm for key, arm in arms_of(setup, operation, size).items()}
    found = {key: np.array(values) for key, values in time_arms(arms, setup.device, rounds, report).items()}
    for operation, size in chosen:
        own = {key[2]: values for key, values in found.items() if key[:2] == (operation.name, size)}
        yield ArmSeconds.of(setup, operation, own, found["", 0, "loop"]), size


def describe(arm_seconds: ArmSeconds, size: int) -> OperationLayers:
    """Layers, sum and agreement of one operator at one size."""
    summed = [
        ablation
        for ablation in ABLATIONS
        if ablation.counts(arm_seconds) and ablation.why_not(arm_seconds) is None
    ]
    total = np.sum([ablation.seconds(arm_seconds) for ablation in summed], axis=0)
    agreement = _median(total / arm_seconds["whole"])
    return OperationLayers(
        operation=arm_seconds.operation.name,
        statement=arm_seconds.operation.statement,
        size=size,
        layers=[_layer(ablation, arm_seconds, ablation in summed) for ablation in ABLATIONS],
        sum_microseconds=_median(total * 1e6),
        whole_microseconds=_median(arm_seconds["whole"] * 1e6),
        agreement=agreement,
        agrees=abs(agreement.value - 1) <= AGREEMENT,
    )


def _layer(ablation: Ablation, arm_seconds: ArmSeconds, in_sum: bool) -> Layer:
    why_not = ablation.why_not(arm_seconds)
    return Layer(
        name=ablation.name,
        in_sum=in_sum,
        experiment=ablation.experiment(arm_seconds),
        why_not=why_not,
        microseconds=None if why_not else _median(ablation.seconds(arm_seconds) * 1e6),
    )


def _median(rounds: Rounds) -> Interval:
    return median_interval(rounds.tolist())
