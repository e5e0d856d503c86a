"""Study of one operator's layers: µs of each by ablation, and whether their sum is the measured whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

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
from service.measure.cases import Bench
from service.modes import GradMode
from service.statistics.intervals import Interval, median_interval
from service.step.device_time import LEAST_VISITS

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
    """Time every variant of every operator and size in interleaved rounds.

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
) -> Iterator[tuple[VariantSeconds, int]]:
    """Every operator and size of `chosen`, in the same rounds."""
    variants = {("", 0, "loop"): python_variant("pass", {})}
    for operation, size in chosen:
        variants |= {
            (operation.name, size, key): variant
            for key, variant in variants_of(setup, operation, size).items()
        }
    found = {
        key: np.array(values) for key, values in time_variants(variants, setup.device, rounds, report).items()
    }
    for operation, size in chosen:
        own = {key[2]: values for key, values in found.items() if key[:2] == (operation.name, size)}
        yield VariantSeconds.of(setup, operation, own, found["", 0, "loop"]), size


def describe(variant_seconds: VariantSeconds, size: int) -> OperationLayers:
    """Layers, sum and agreement of one operator at one size."""
    summed = [
        ablation
        for ablation in ABLATIONS
        if ablation.counts(variant_seconds) and ablation.why_not(variant_seconds) is None
    ]
    total = np.sum([ablation.seconds(variant_seconds) for ablation in summed], axis=0)
    agreement = _median(total / variant_seconds["whole"])
    return OperationLayers(
        operation=variant_seconds.operation.name,
        statement=variant_seconds.operation.statement,
        size=size,
        layers=[_layer(ablation, variant_seconds, ablation in summed) for ablation in ABLATIONS],
        sum_microseconds=_median(total * 1e6),
        whole_microseconds=_median(variant_seconds["whole"] * 1e6),
        agreement=agreement,
        agrees=abs(agreement.value - 1) <= AGREEMENT,
    )


def _layer(ablation: Ablation, variant_seconds: VariantSeconds, in_sum: bool) -> Layer:
    why_not = ablation.why_not(variant_seconds)
    return Layer(
        name=ablation.name,
        in_sum=in_sum,
        experiment=ablation.experiment(variant_seconds),
        why_not=why_not,
        microseconds=None if why_not else _median(ablation.seconds(variant_seconds) * 1e6),
    )


def _median(rounds: Rounds) -> Interval:
    return median_interval(rounds.tolist())


Rounds = NDArray[np.float64]
"""Seconds per call, round by round."""

_NATIVE = ("dispatcher", "from native", "autocast", "no autocast", "cast", "cast of one", "compute nothing",
           "allocate", "allocate nothing")  # fmt: skip
_PYTHON = ("hollow", "from python", "taped")

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
        """Its seconds per call, round by round."""
        return self.seconds[variant]

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
    experiment: Callable[[VariantSeconds], str]
    seconds: Callable[[VariantSeconds], Rounds]
    counts: Callable[[VariantSeconds], bool] = lambda _: True
    why_not: Callable[[VariantSeconds], str | None] = lambda _: None


def _autocast(r: VariantSeconds) -> Rounds:
    fixed = r["autocast"] - r["no autocast"]
    return fixed + r["cast"] - r["cast of one"] if r.operation.lowered else fixed


def _kernel(r: VariantSeconds) -> Rounds:
    return r["graph"][np.isfinite(r["graph"])] if r.cuda else r.growing


def _no_kernel(r: VariantSeconds) -> str | None:
    return HOST_BEHIND if r.cuda and len(_kernel(r)) < LEAST_VISITS else None


def _grad_text(grad: GradMode) -> str:
    return {"enabled": "grad mode on", "no_grad": "no_grad", "inference_mode": "inference mode"}[grad]


def _given_results(r: VariantSeconds) -> str:
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


STATES = {"enabled": "grad mode on", "no_grad": "no_grad", "inference_mode": "inference mode"}


def show(finding: LayersFinding, console: Console) -> None:
    """Print `finding`."""
    state = f"{STATES[finding.grad]}, autocast {'on' if finding.autocast else 'off'}"
    machine = f"{finding.device}, {finding.dtype}, {finding.threads} thread(s)"
    console.print(f"[bold]layers of one call, {machine}, {state}[/]")
    by_operation: dict[str, list[OperationLayers]] = {}
    for each in finding.operations:
        by_operation.setdefault(each.operation, []).append(each)
    for sizes in by_operation.values():
        console.print(_table(sizes), _experiments(sizes[0]))
    console.print(
        f"[dim]µs, median of {finding.rounds} interleaved rounds \\[95 % interval]. In brackets: not in the "
        "sum, because it is switched off here or runs beside the host. Calls follow each other: within a "
        "model each costs more.[/]"
    )
    for note in finding.notes:
        console.print(f"note: {note}", markup=False)


def _table(sizes: list[OperationLayers]) -> Table:
    table = Table("layer", *(f"{each.size} × {each.size}" for each in sizes), title=sizes[0].statement)
    for index, layer in enumerate(sizes[0].layers):
        cells = [interval_cell(each.layers[index].microseconds, each.layers[index].in_sum) for each in sizes]
        table.add_row(layer.name, *cells)
    table.add_section()
    table.add_row("sum", *(interval_cell(each.sum_microseconds, True) for each in sizes))
    table.add_row("whole, measured apart", *(interval_cell(each.whole_microseconds, True) for each in sizes))
    table.add_row(
        f"sum / whole, within {AGREEMENT:.0%}",
        *(agreement_cell(each.agreement, each.agrees) for each in sizes),
    )
    return table


def _experiments(one: OperationLayers) -> Table:
    table = Table("layer", "isolated by", box=None, padding=(0, 2), header_style="dim", style="dim")
    for layer in one.layers:
        table.add_row(layer.name, f"not here: {layer.why_not}" if layer.why_not else layer.experiment)
    return table


def interval_cell(interval: Interval | None, in_sum: bool) -> str:
    """Microseconds with their bounds, dimmed where they are not in the sum; a dash for None."""
    if interval is None:
        return "–"
    text = f"{_number(interval.value)} \\[{_number(interval.low)}, {_number(interval.high)}]"
    return text if in_sum else f"[dim]({text})[/]"


def agreement_cell(ratio: Interval, agrees: bool) -> str:
    """Sum over whole with its bounds, marked where it does not agree."""
    text = f"{ratio.value:.2f} \\[{ratio.low:.2f}, {ratio.high:.2f}]"
    return text if agrees else f"[bold red]{text}[/]"


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"
