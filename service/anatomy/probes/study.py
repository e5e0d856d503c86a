"""The probes, one pitfall each: a step without and with it, the counter, the line to blame, the cure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from service.anatomy.errors import StudyError
from service.anatomy.median_seconds import MedianSeconds
from service.anatomy.probes.comparison import Counter, FaultComparison, interleave
from service.anatomy.probes.graphs import graph_break
from service.anatomy.probes.guards import grad_mode_mismatch, recompile, thread_change
from service.anatomy.probes.memory import allocator_churn, hidden_copy
from service.anatomy.probes.modes import autocast, sync_point
from service.anatomy.probes.operator import custom_op
from service.anatomy.probes.probed_model import ProbedModel, make_probed_model
from service.anatomy.probes.shapes import LIMIT, unbucketed_shape
from service.anatomy.probes.state import as_found
from service.anatomy.progress import Report
from service.measure.cases import Bench
from service.protocol.messages import Phase
from service.protocol.probes import PROBES
from service.statistics.intervals import Interval, median_interval

SMALLEST_DIFFERENCE = 0.01
"""A smaller difference is none, whatever its interval: two copies of one step differ by as much."""

Verdict = Literal["slower", "faster", "no detectable difference"]


class ProbesArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which probe, at which batch. `repeats` pairs are timed, fewer where each one compiles."""

    name: str
    batch_size: Annotated[int, msgspec.Meta(ge=1)] = 1
    repeats: Annotated[int, msgspec.Meta(ge=6, le=1001)] = 41
    seed: int = 0


class ProbeFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A probe's result. Times are seconds of one step, until `device` has finished.

    `counter` has its value in the step without and with the fault. `ratio` is the time with the fault over
    that without, per pair. `blame` is `file:line` of the fault, found as it happened. `verdict` is `slower`
    or `faster` only where the interval of `ratio` excludes 1 and it differs from 1 by SMALLEST_DIFFERENCE.
    """

    name: str
    without: MedianSeconds
    with_fault: MedianSeconds = msgspec.field(name="with")
    ratio: Interval
    verdict: Verdict
    counter: Counter
    blame: str
    cure: str
    teaches: str
    notes: list[str]
    device: str
    batch_size: int
    phase: Phase
    layers: int


@dataclass(frozen=True, slots=True)
class Probe:
    """A row of the table. `resets`: it leaves compiled entries on the model's own code."""

    run: Callable[[ProbedModel, Report], FaultComparison]
    cure: str
    phase: Phase = "decode"
    resets: bool = False
    recompile_limit: int = 8


TABLE: dict[str, Probe] = {
    "graph-break": Probe(
        graph_break, resets=True,
        cure="Take the call out of the step; with `fullgraph=True` a break is an error that names its line.",
    ),
    "recompile": Probe(
        recompile, cure="Keep the number out of the step, or in a tensor: its value is then no guard."
    ),
    "unbucketed-shape": Probe(
        unbucketed_shape, phase="prefill", recompile_limit=LIMIT,
        cure="Pad every input to one of a few fixed sizes, and compile each of them before serving.",
    ),
    "sync-point": Probe(
        sync_point, resets=True,
        cure="Leave the value on the device, and read it after the step, with what goes to the host anyway.",
    ),
    "hidden-copy": Probe(
        hidden_copy, phase="prefill",
        cure="Keep one layout through the step, or copy once where it can be seen, with `.contiguous()`.",
    ),
    "allocator-churn": Probe(
        allocator_churn,
        cure="Allocate the buffer once, beside the cache, and write into it in every step.",
    ),
    "grad-mode-mismatch": Probe(
        grad_mode_mismatch, cure="Warm up in exactly the grad mode that serves, and enter it in one place."
    ),
    "thread-change": Probe(
        thread_change, cure="Set the number of threads once, before the first compilation, and never again."
    ),
    "custom-op": Probe(
        custom_op, resets=True,
        cure="Register the kernel with `torch.library.custom_op`, and give it a fake with `register_fake`.",
    ),
    "autocast": Probe(
        autocast, cure="Cast the weights once (`--dtype bfloat16`): autocast is for training in float32."
    ),
}  # fmt: skip
"""Every probe, by the names in `service.protocol.probes`."""


def run_probe(bench: Bench, arguments: ProbesArguments, report: Report) -> ProbeFinding:
    """Run the probe `arguments.name` and restore the process's state.

    Raises StudyError for a probe that does not exist, a batch that no bucket holds, or a model without the
    part that the fault is in.
    """
    if arguments.name not in TABLE:
        known = ", ".join(TABLE)
        raise StudyError("not_found", f"no probe '{arguments.name[:64]}'; try one of {known}", "name")
    probe = TABLE[arguments.name]
    with as_found(bench, probe.resets, probe.recompile_limit):
        return _measure(bench, probe, arguments, report)


def _measure(bench: Bench, probe: Probe, arguments: ProbesArguments, report: Report) -> ProbeFinding:
    probed = make_probed_model(bench, arguments.batch_size)
    comparison = probe.run(probed, report)
    repeats = min(arguments.repeats, comparison.most_repeats or arguments.repeats)
    report(f"timing {repeats} pairs of steps")
    without, with_fault = interleave(comparison, repeats, arguments.seed, bench.synchronise)
    # A pair's steps run close together, in one state of the machine; the median tolerates disturbed pairs.
    ratio = median_interval([b / a for a, b in zip(without, with_fault, strict=True)])
    return ProbeFinding(
        name=arguments.name,
        without=MedianSeconds.of(median_interval(without)),
        with_fault=MedianSeconds.of(median_interval(with_fault)),
        ratio=ratio,
        verdict=verdict_of(ratio),
        counter=comparison.counter,
        blame=comparison.blame,
        cure=probe.cure,
        teaches=PROBES[arguments.name],
        notes=comparison.notes,
        device=bench.device.type,
        batch_size=probed.buffers.bucket,
        phase=probe.phase,
        layers=probed.model.config.layers,
    )


def verdict_of(ratio: Interval) -> Verdict:
    """The verdict that the interval of times with the fault over times without it supports."""
    if not ratio.excludes_one or abs(ratio.value - 1) < SMALLEST_DIFFERENCE:
        return "no detectable difference"
    return "slower" if ratio.value > 1 else "faster"
