"""What a request that shared its steps with others took.

Its dispatch and kernel are those of the whole of every step that it ran in, as it waited for all of it: so
its parts make its total. In metrics each step is counted once, by one of the requests that ran in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from service.engine.job_result import JobResult
from service.engine.outcome import StepEstimates, job_timings, phase_timings
from service.records import Phase, PhaseTimings, SharedWork, StepGroup, Timings
from service.step.meters import Readings

EstimatesOf = Callable[[int], StepEstimates]
"""Costs per step in a batch bucket."""

PER_STEP = ("begin", "call", "feed", "sampling", "wait", "span")

SUMS = (
    "wall_seconds", "dispatch_seconds", "device_span_seconds", "kernel_seconds", "sync_wait_seconds",
    "dispatch_low_seconds", "dispatch_high_seconds", "period_seconds",
    "kernel_samples", "host_samples", "system_samples", "unclassified_samples",
)  # fmt: skip


@dataclass(slots=True, eq=False)
class BatchStep:
    """A prefill (of one step per chunk) or a decode step in `bucket`, of `rows` sequences.

    For `stall_ns` after it the requests in it stood still, because others were prefilled. `counted`: a
    request has counted it for the metrics.
    """

    phase: Phase
    bucket: int
    rows: int
    readings: Readings
    stall_ns: int = 0
    counted: bool = False


def shared_timings(
    result: JobResult,
    own_rows: int,
    steps: Sequence[BatchStep],
    estimates_of: EstimatesOf,
    switches: int,
    done_ns: int,
) -> Timings:
    """What a request of `own_rows` prompts took that ran in `steps`.

    Where it ended well, it counts those of its steps that nobody has counted, and `switches`.
    """
    estimates = estimates_of(result.bucket)
    groups = _by_bucket(steps, result.ended_ns, estimates_of)
    prefill = [group for group in groups if group.phase == "prefill"]
    decode = [group for group in groups if group.phase == "decode"]
    whole = job_timings(
        result,
        _total(prefill, "prefill", estimates, result.prefill.minor_faults),
        _total(decode, "decode", estimates, result.decode.minor_faults),
        estimates,
        done_ns,
    )
    ended_well = result.kind == "ok"
    count = sum(group.timings.steps for group in groups)
    stall_ns = sum(step.stall_ns for step in steps)
    shared = SharedWork(
        stall_seconds=stall_ns / 1e9,
        rows=sum(group.rows for group in groups) / count if count else float(own_rows),
        alone=stall_ns == 0 and all(step.rows == own_rows for step in steps),
        counted=_count(steps, groups, result.ended_ns, estimates_of) if ended_well else [],
        counted_switches=switches if ended_well else 0,
    )
    return msgspec.structs.replace(whole, shared=shared)


def _count(
    steps: Sequence[BatchStep], groups: list[StepGroup], ended_ns: int, estimates_of: EstimatesOf
) -> list[StepGroup]:
    """Those of `steps` that nobody has counted, which now are; mostly all, of which `groups` are made."""
    counted = {step for step in steps if step.counted}
    for step in steps:
        step.counted = True
    return _by_bucket(steps, ended_ns, estimates_of, counted) if counted else groups


def _by_bucket(
    steps: Sequence[BatchStep],
    ended_ns: int,
    estimates_of: EstimatesOf,
    without: set[BatchStep] | frozenset[BatchStep] = frozenset(),
) -> list[StepGroup]:
    """One group for each phase and bucket; a step lasts until the next begins, the last until `ended_ns`."""
    ends = [step.readings.begin[0] if step.readings.begin else 0 for step in steps[1:]]
    groups: dict[tuple[Phase, int], list[tuple[BatchStep, int]]] = {}
    for step, end_ns in zip(steps, [*ends, ended_ns], strict=False):
        if step not in without:
            groups.setdefault((step.phase, step.bucket), []).append((step, end_ns))
    return [_group(phase, bucket, chosen, estimates_of(bucket)) for (phase, bucket), chosen in groups.items()]


def _group(
    phase: Phase, bucket: int, steps: Sequence[tuple[BatchStep, int]], estimates: StepEstimates
) -> StepGroup:
    """Of steps, each with its end. Their periods are not one stretch of time, so they are added up."""
    readings = [step.readings for step, _ in steps]
    together = Readings(unmeasured=sum(one.unmeasured for one in readings))
    for name in PER_STEP:
        setattr(together, name, [value for one in readings for value in getattr(one, name)])
    periods: list[int] = []
    for step, end_ns in steps:
        own = step.readings.periods(end_ns)
        if own:
            own[-1] -= step.stall_ns
        periods += own
    timings = phase_timings(together, phase, estimates, until_ns=0)
    if timings.period_seconds is not None:
        timings = msgspec.structs.replace(
            timings,
            period_seconds=sum(periods) / 1e9,
            period_steps_seconds=[value / 1e9 for value in periods] if estimates.cuda else [],
        )
    rows = sum(step.rows * step.readings.steps for step, _ in steps)
    return StepGroup(phase=phase, batch=bucket, rows=rows, timings=timings)


def _total(
    groups: list[StepGroup], phase: Phase, estimates: StepEstimates, minor_faults: int
) -> PhaseTimings:
    """The sums over steps of several buckets, whose costs per step differ; its single steps are left out."""
    parts = [group.timings for group in groups]
    if not parts:
        none = phase_timings(Readings(), phase, estimates, until_ns=0)
        return msgspec.structs.replace(none, minor_faults=minor_faults)
    sums: dict[str, float | None] = {}
    for name in SUMS if len(parts) > 1 else ():
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
