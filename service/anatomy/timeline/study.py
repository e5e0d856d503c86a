"""Study of one step as host and device blocks, two modes on one axis, and the share that was no kernel."""

from __future__ import annotations

from pathlib import Path

import msgspec

from service.anatomy.errors import StudyError
from service.anatomy.profiler_note import attached_note
from service.anatomy.progress import Report
from service.anatomy.resolve import resolve_bucket, resolve_case, resolve_modes
from service.anatomy.timeline.blocks import record_step
from service.anatomy.timeline.files import write
from service.anatomy.timeline.page import check_page
from service.anatomy.timeline.tax import Timed, tax_by_kernels, tax_by_samples, time_steps
from service.anatomy.timeline.tracks import TimelineFinding, Track
from service.measure.cases import Bench
from service.measure.rounds import paired_median_ratio
from service.protocol.messages import Phase
from service.protocol.modes import MODES
from service.statistics.intervals import Interval, median_interval


class TimelineArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`against` is a second mode on the same axis; `out` is a folder for a trace and, with `page`, a page."""

    mode: str = "eager"
    against: str | None = None
    batch_size: int = 1
    phase: Phase = "decode"
    out: str | None = None
    page: bool = True


def draw_timeline(bench: Bench, arguments: TimelineArguments, report: Report) -> TimelineFinding:
    """Record the steps. Raises StudyError for arguments that cannot work or a mode that does not compile."""
    if arguments.out is not None and arguments.page:
        check_page()
    bucket = resolve_bucket(bench, arguments.batch_size)
    modes = resolve_modes(bench, arguments.mode)
    if arguments.against is not None:
        if arguments.against == arguments.mode:
            raise StudyError("invalid_request", "against: name another mode than mode", "against")
        modes += resolve_modes(bench, arguments.against, "against")
    cases = [resolve_case(bench, mode, bucket, arguments.phase, report) for mode in modes]
    notes = attached_note()
    report("timing steps without a profiler")
    timed = time_steps(bench, cases, report)
    report("recording steps with the profiler")
    tracks = [_track(bench, one) for one in timed]
    finding = TimelineFinding(
        device=bench.device.type,
        batch_bucket=bucket,
        phase=arguments.phase,
        tracks=tracks,
        speedup=_speedup(*timed),
        files=[],
        notes=notes,
    )
    if arguments.out is None:
        return finding
    return msgspec.structs.replace(finding, files=write(finding, Path(arguments.out), arguments.page))


def _speedup(first: Timed, second: Timed | None = None) -> Interval | None:
    return None if second is None else paired_median_ratio(first.rounds, second.rounds)


def _track(bench: Bench, timed: Timed) -> Track:
    case = timed.case
    wall = median_interval(timed.seconds)
    effect = MODES[case.mode].effect(bench.device.type)
    recorded = record_step(bench, case)
    counted = recorded.counted
    kernels = counted.kernel_seconds
    tax = tax_by_samples(timed.samples) if kernels is None else tax_by_kernels(kernels, wall)
    return Track(
        mode=case.mode,
        effective=effect.name,
        reason=effect.reason,
        wall=wall,
        tax=tax,
        no_tax=None if tax else timed.no_samples or counted.unknown,
        profiled_seconds=recorded.profiled_seconds,
        stretch=recorded.profiled_seconds / wall.value,
        operators=counted.operators,
        kernels=counted.kernels,
        launches=counted.launches,
        kernel_seconds=counted.kernel_seconds,
        blocks=recorded.blocks,
    )
