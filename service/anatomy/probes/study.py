"""The probes, one pitfall each: a step without and with it, the counter, the line to blame, the cure."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from service.anatomy.errors import StudyError
from service.anatomy.median_seconds import MedianSeconds
from service.anatomy.probes.comparison import Counter, interleave, paired_ratio
from service.anatomy.probes.probed_model import make_probed_model
from service.anatomy.probes.state import as_found
from service.anatomy.probes.table import TABLE, Probe
from service.anatomy.profiler_note import attached_note
from service.anatomy.progress import Report
from service.measure.cases import Bench
from service.protocol.messages import Phase
from service.protocol.probes import NOT_ON_CPU, PROBES
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
    """A probe's result. Times are seconds of one step, or of `subject`, until `device` has finished.

    `phase` and `layers` are None where that is no step of the model. `counter` has its value without and with
    the fault. `ratio` is the time with the fault over that without, per pair. `blame` is `file:line` of the
    fault, found as it happened. `verdict` is `slower` or `faster` only where the interval of `ratio` excludes
    1 and it differs from 1 by SMALLEST_DIFFERENCE.
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
    subject: str
    phase: Phase | None
    layers: int | None


def run_probe(bench: Bench, arguments: ProbesArguments, report: Report) -> ProbeFinding:
    """Run the probe `arguments.name` and restore the process's state.

    Raises StudyError for a probe that does not exist or that this device cannot show, a batch that no bucket
    holds, or a model without the part that the fault is in.
    """
    if arguments.name not in TABLE:
        known = ", ".join(TABLE)
        raise StudyError("not_found", f"no probe '{arguments.name[:64]}'; try one of {known}", "name")
    if bench.device.type == "cpu" and arguments.name in NOT_ON_CPU:
        message = f"{NOT_ON_CPU[arguments.name]}; run it on a CUDA device"
        raise StudyError("unsupported_here", message, "name")
    probe = TABLE[arguments.name]
    with as_found(bench, probe.resets, probe.recompile_limit):
        return _measure(bench, probe, arguments, report)


def _measure(bench: Bench, probe: Probe, arguments: ProbesArguments, report: Report) -> ProbeFinding:
    probed = make_probed_model(bench, arguments.batch_size)
    comparison = probe.run(probed, report)
    notes = [*comparison.notes, *attached_note()]
    repeats = min(arguments.repeats, comparison.most_repeats or arguments.repeats)
    report(f"timing {repeats} pairs of steps")
    without, with_fault = interleave(comparison, repeats, arguments.seed, bench.synchronise)
    ratio = paired_ratio(with_fault, without)
    bucket, layers = probed.buffers.bucket, probed.model.config.layers
    of_the_model = comparison.subject is None
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
        notes=notes,
        device=bench.device.type,
        batch_size=bucket,
        subject=comparison.subject or f"one {probe.phase} step, {layers} layers, batch {bucket}",
        phase=probe.phase if of_the_model else None,
        layers=layers if of_the_model else None,
    )


def verdict_of(ratio: Interval) -> Verdict:
    """The verdict that the interval of times with the fault over times without it supports."""
    if not ratio.excludes_one or abs(ratio.value - 1) < SMALLEST_DIFFERENCE:
        return "no detectable difference"
    return "slower" if ratio.value > 1 else "faster"
