"""Readings of steps that jobs shared become the timings of one of them.

A job's dispatch and kernel are those of the whole of every step that it ran in, as it waited for all of it:
so its parts make its total. What is counted in metrics is taken from each step once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from service.engine.batching.member import LeftMember
from service.engine.batching.step_log import BucketReadings, Stretch
from service.engine.timings import StepEstimates, job_timings, phase_timings
from service.protocol.messages import Phase
from service.protocol.timings import PhaseTimings, SharedWork, StepGroup, Timings
from service.step.meters import Readings

EstimatesOf = Callable[[int], StepEstimates]
"""Costs per step in a batch bucket."""

SUMS = (
    "wall_seconds", "dispatch_seconds", "device_span_seconds", "kernel_seconds", "sync_wait_seconds",
    "dispatch_low_seconds", "dispatch_high_seconds", "period_seconds",
)  # fmt: skip

COUNTS = ("kernel_samples", "host_samples", "system_samples", "unclassified_samples")


def shared_timings(
    left: LeftMember, estimates_of: EstimatesOf, counted_switches: int, done_ns: int
) -> Timings:
    """What the job took, by the definitions of `service.protocol.timings.Timings`.

    Its steps that no job has counted become its to count, with `counted_switches`, where it ended well.
    """
    result = left.result
    estimates = estimates_of(result.bucket)
    prefill = _groups(left.prefill.by_bucket(), "prefill", estimates_of)
    decode = _groups(left.decode.by_bucket(), "decode", estimates_of)
    whole = job_timings(
        result,
        _total(prefill, "prefill", estimates, result.prefill.minor_faults),
        _total(decode, "decode", estimates, result.decode.minor_faults),
        estimates,
        done_ns,
    )
    counted = []
    if result.kind == "ok":
        counted += _counted(left.prefill, prefill, "prefill", estimates_of)
        counted += _counted(left.decode, decode, "decode", estimates_of)
    return msgspec.structs.replace(whole, shared=_shared(left, counted, counted_switches))


def _shared(left: LeftMember, counted: list[StepGroup], counted_switches: int) -> SharedWork:
    own = len(left.job.prompts)
    rows = [*left.prefill.rows, *left.decode.rows]
    stall_ns = left.prefill.stall_ns + left.decode.stall_ns
    return SharedWork(
        stall_seconds=stall_ns / 1e9,
        rows=sum(rows) / len(rows) if rows else float(own),
        alone=stall_ns == 0 and all(count == own for count in rows),
        counted=counted,
        counted_switches=counted_switches if left.result.kind == "ok" else 0,
    )


def _groups(found: Mapping[int, BucketReadings], phase: Phase, estimates_of: EstimatesOf) -> list[StepGroup]:
    """Steps of one phase, by their bucket, with what each bucket's costs per step make of them."""
    return [
        StepGroup(
            phase=phase, batch=bucket, rows=own.rows, timings=_timings(own, phase, estimates_of(bucket))
        )
        for bucket, own in found.items()
    ]


def _counted(
    stretch: Stretch, whole: list[StepGroup], phase: Phase, estimates_of: EstimatesOf
) -> list[StepGroup]:
    """Those of the job's steps that no other has counted: mostly all of them, which `whole` has already."""
    new = stretch.count()
    return whole if len(new) == len(stretch.numbers) else _groups(stretch.by_bucket(new), phase, estimates_of)


def _timings(found: BucketReadings, phase: Phase, estimates: StepEstimates) -> PhaseTimings:
    """Of steps of one bucket; their periods are not one stretch of time, so they are added up."""
    timed = phase_timings(found.readings, phase, estimates, until_ns=0)
    if timed.period_seconds is None:
        return timed
    return msgspec.structs.replace(
        timed,
        period_seconds=sum(found.periods) / 1e9,
        period_steps_seconds=[value / 1e9 for value in found.periods] if estimates.cuda else [],
    )


def _total(
    groups: list[StepGroup], phase: Phase, estimates: StepEstimates, minor_faults: int
) -> PhaseTimings:
    """The sums over steps of several buckets, whose costs per step differ; its single steps are left out."""
    parts = [group.timings for group in groups]
    if not parts:
        none = phase_timings(Readings(), phase, estimates, until_ns=0)
        return msgspec.structs.replace(none, minor_faults=minor_faults)
    sums: dict[str, float | None] = {}
    for name in (*SUMS, *COUNTS) if len(parts) > 1 else ():
        values = [getattr(part, name) for part in parts]
        sums[name] = None if None in values else sum(values)
    return msgspec.structs.replace(
        parts[0],
        **sums,
        samples_of=parts[0].samples_of if all(part.samples_of for part in parts) else None,
        minor_faults=minor_faults,
        steps=sum(part.steps for part in parts),
        dispatch_steps_seconds=[],
        device_span_steps_seconds=[],
        period_steps_seconds=[],
    )
