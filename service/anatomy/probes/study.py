"""The probes, one pitfall each: a step without and with it, the counter, the line to blame, the cure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import msgspec

from service.anatomy.common import MedianSeconds, Report, StudyError, attached_note
from service.anatomy.probes import compiler, eager
from service.anatomy.probes.faults import (
    Counter,
    FaultComparison,
    as_found,
    line_of_fault,
    step_seconds,
)
from service.anatomy.probes.probed import Probed, make_probed
from service.measure.cases import AnyBench
from service.measure.rounds import in_rounds, paired_median_ratio
from service.records import Phase
from service.statistics.intervals import Interval, median_interval
from service.study_names import PROBES

SMALLEST_DIFFERENCE = 0.01
"""A smaller difference is none, whatever its interval: two copies of one step differ by as much."""

Verdict = Literal["slower", "faster", "no detectable difference"]


class ProbesArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which probe, at which batch; by default the smallest that is served, and of a module the largest where
    the fault needs several rows. `repeats` pairs are timed, fewer where each one compiles.
    """

    name: str
    batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    repeats: Annotated[int, msgspec.Meta(ge=6, le=1001)] = 41


class ProbeFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A probe's result. Times are seconds of one step, until `device` has finished; `ratio` is the time with
    the fault over that without, per pair. `verdict` is another than none only where the interval of `ratio`
    excludes 1 and it differs from 1 by SMALLEST_DIFFERENCE. `layers`: None for a user's module.
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
    layers: int | None


def run_probe(bench: AnyBench, arguments: ProbesArguments, report: Report) -> ProbeFinding:
    """Run the probe `arguments.name` and restore the process's state.

    Raises StudyError for a probe that does not exist or that this device or model cannot show.
    """
    if arguments.name not in TABLE:
        known = ", ".join(TABLE)
        raise StudyError("not_found", f"no probe '{arguments.name[:64]}'; try one of {known}", "name")
    probe = TABLE[arguments.name]
    with as_found(bench, probe.recompile_limit):
        return _measure(bench, probe, arguments, report)


def _measure(bench: AnyBench, probe: Probe, arguments: ProbesArguments, report: Report) -> ProbeFinding:
    probed = make_probed(bench, arguments.batch_size, probe.phase)
    comparison = probe.run(probed, report)
    notes = [*comparison.notes, *attached_note()]
    repeats = min(arguments.repeats, comparison.most_repeats or arguments.repeats)
    report(f"timing {repeats} pairs of steps")
    steps = {"without": comparison.without, "with": comparison.with_fault}
    timed = {side: partial(step_seconds, step, bench.synchronise) for side, step in steps.items()}
    without, with_fault = in_rounds(timed, repeats, "0").values()
    ratio = paired_median_ratio(with_fault, without)
    return ProbeFinding(
        name=arguments.name,
        without=MedianSeconds.of(median_interval(without)),
        with_fault=MedianSeconds.of(median_interval(with_fault)),
        ratio=ratio,
        verdict=verdict_of(ratio),
        counter=comparison.counter,
        blame=line_of_fault(comparison.fault),
        cure=probe.cure,
        teaches=PROBES[arguments.name],
        notes=notes,
        device=bench.device.type,
        batch_size=comparison.batch_size or probed.batch_size,
        phase=probed.phase(probe.phase),
        layers=probed.layers,
    )


def verdict_of(ratio: Interval) -> Verdict:
    if not ratio.excludes_one or abs(ratio.value - 1) < SMALLEST_DIFFERENCE:
        return "no detectable difference"
    return "slower" if ratio.value > 1 else "faster"


@dataclass(frozen=True, slots=True)
class Probe:
    """A row of the table. `phase`: of the step of a language model that it is put into."""

    run: Callable[[Probed, Report], FaultComparison]
    cure: str
    phase: Phase = "decode"
    recompile_limit: int = 8


TABLE: dict[str, Probe] = {
    "graph-break": Probe(
        compiler.graph_break,
        cure="Take the call out of the step; with `fullgraph=True` a break is an error that names its line.",
    ),
    "recompile": Probe(
        compiler.recompile,
        cure="Keep the number out of the step, or in a tensor: its value is then no guard."
    ),
    "unbucketed-shape": Probe(
        compiler.unbucketed_shape, phase="prefill", recompile_limit=compiler.LIMIT,
        cure="Pad every input to one of a few fixed sizes, and compile each of them before serving; or mark "
        "the dimension before the first call, `torch._dynamo.mark_dynamic(tensor, 1)`.",
    ),
    "sync-point": Probe(
        eager.sync_point,
        cure="Leave the value on the device, and read it after the step, with what goes to the host anyway.",
    ),
    "hidden-copy": Probe(
        eager.hidden_copy, phase="prefill",
        cure="Keep one layout through the step, or copy once where it can be seen, with `.contiguous()`.",
    ),
    "allocator-churn": Probe(
        eager.allocator_churn,
        cure="Allocate the buffer once, beside the cache, and write into it in every step.",
    ),
    "grad-mode-mismatch": Probe(
        compiler.grad_mode_mismatch,
        cure="Warm up in exactly the grad mode that serves, and enter it in one place."
    ),
    "thread-change": Probe(
        compiler.thread_change,
        cure="Set the number of threads once, before the first compilation, and never again."
    ),
    "custom-op": Probe(
        compiler.custom_op,
        cure="Register it (`torch.library.custom_op`) with a fake, and with a gradient where it is trained.",
    ),
    "autocast": Probe(
        eager.autocast,
        cure="Cast the weights once (`--dtype bfloat16`): autocast is for training in float32."
    ),
}  # fmt: skip
"""Every probe, by the names in `service.study_names`."""
