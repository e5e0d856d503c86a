"""Measures all that the lessons need, by the studies and probes that anyone can run one by one."""

from __future__ import annotations

from datetime import UTC, datetime

from service.anatomy.budget.study import BudgetArguments, draw_budget
from service.anatomy.layers.study import LayersArguments, measure_layers
from service.anatomy.lessons.findings import Findings, ModePoint, SavedBytes, StepCounts
from service.anatomy.lessons.key_orders import key_orders
from service.anatomy.lessons.layer_norm import count_kernels
from service.anatomy.lessons.strides import time_strides
from service.anatomy.memory.study import MemoryArguments, read_memory
from service.anatomy.operators.registry import count_registry
from service.anatomy.operators.study import OperatorsArguments, OperatorsFinding, list_operators
from service.anatomy.prepared_bench import machine_of
from service.anatomy.probes.study import ProbeFinding, ProbesArguments, run_probe
from service.anatomy.progress import Report, named
from service.measure.cases import Bench

SIZE = 8
"""Of the tensors in the table of layers, [SIZE, SIZE]: their kernels do next to nothing."""

MODES = ("eager", "no_grad", "inference_mode", "compiled")

COMPARED: dict[str, tuple[str, ...]] = {
    "eager": ("eager", "compiled"),
    "no_grad": ("no_grad", "inference_mode"),
    "inference_mode": ("inference_mode", "compiled"),
}
"""The mode that is compared with, and the modes that are timed in the same rounds, itself first."""

PROBES_ON_CUDA = ("sync-point", "fragmentation")


def measure(bench: Bench, rounds: int, report: Report) -> Findings:
    """Measure in `rounds` repeats, in minutes. Raises StudyError for a mode that is not configured."""
    layers = LayersArguments(sizes=[SIZE], rounds=rounds)
    return Findings(
        machine=machine_of(bench),
        measured=datetime.now(UTC).date().isoformat(),
        rounds=rounds,
        model_layers=bench.model.config.layers,
        layers=measure_layers(bench, layers, named("layers", report)),
        steps={mode: _step(bench, mode, named(mode, report)) for mode in MODES},
        speedups={mode: _points(bench, mode, rounds, named("budget", report)) for mode in COMPARED},
        saved=[_saved(bench, size, report) for size in sorted({min(bench.buffers), max(bench.buffers)})],
        layer_norm=count_kernels(bench),
        strides=time_strides(bench, rounds, named("strides", report)),
        keys=key_orders(bench),
        registry=count_registry(),
        probes=_probes(bench, rounds, report),
    )


def _step(bench: Bench, mode: str, report: Report) -> StepCounts:
    arguments = OperatorsArguments(mode=mode, batch_size=min(bench.buffers), native=False)
    return counts_of(list_operators(bench, arguments, report))


def counts_of(found: OperatorsFinding) -> StepCounts:
    """The counts of a finding of the study of operators."""
    return StepCounts(
        step=found.step_seconds,
        dispatch=found.dispatch,
        calls=len(found.operators),
        views=sum(row.is_view is True for row in found.operators),
        autograd=sum(any(key.startswith("Autograd") for key in row.keys or ()) for row in found.operators),
        kernels=None if found.fused_kernels is None else sum(kernel.calls for kernel in found.fused_kernels),
        launches=found.launches,
    )


def _points(bench: Bench, mode: str, rounds: int, report: Report) -> list[ModePoint]:
    arguments = BudgetArguments(modes=list(COMPARED[mode]), batch_sizes=[min(bench.buffers)], rounds=rounds)
    return [
        ModePoint(
            mode=point.mode,
            step=point.step,
            kernel_seconds=point.kernel_seconds,
            source=point.source,
            speedup=point.speedup,
        )
        for point in draw_budget(bench, arguments, report).points
    ]


def _saved(bench: Bench, batch_size: int, report: Report) -> SavedBytes:
    arguments = MemoryArguments(mode="eager", batch_size=batch_size, phase="prefill")
    found = read_memory(bench, arguments, report)
    parameters = next(part.bytes for part in found.parts if part.name == "parameters")
    return SavedBytes(
        batch_size=batch_size, saved_bytes=found.steps[0].tape.own_bytes, parameter_bytes=parameters
    )


def _probes(bench: Bench, rounds: int, report: Report) -> dict[str, ProbeFinding]:
    if bench.device.type != "cuda":
        return {}
    return {
        name: run_probe(bench, ProbesArguments(name=name, repeats=rounds), named(name, report))
        for name in PROBES_ON_CUDA
    }
