"""A job's result becomes the `Outcome` that is sent to the front: one per job, built here only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import msgspec

from service.engine.job import JobResult
from service.engine.step_shares import ENOUGH
from service.engine.warmup import ConfiguredMode
from service.records import (
    Job,
    Outcome,
    Phase,
    PhaseTimings,
    SampleCounts,
    SharedWork,
    Source,
    StepGroup,
    StepProfile,
    Timings,
)
from service.statistics.boundedness import dispatch_share
from service.step.meters import Readings
from service.step.profiling import STEPS_PER_TRACE
from service.step.trace import StepShape
from service.workloads import WORKLOADS


def build_outcome(
    job: Job, result: JobResult, configured: ConfiguredMode | None, measured: Callable[[int], Timings]
) -> Outcome:
    """What is answered to `job`. `measured` makes its timings, given the instant when all else is done."""
    kernels, launches = totals(result)
    effective, reason = ran_as(configured, result.profile) if configured else (job.mode, None)
    return Outcome(
        id=job.id,
        mode=job.mode,
        effective=effective,
        reason=reason,
        kind=result.kind,
        problem=result.problem,
        batch_size=job.batch_size,
        batch_bucket=result.bucket,
        prompt_tokens=result.prompt_tokens,
        outputs=result.rows.outputs() if result.rows else [],
        forward_outputs=result.forward_outputs,
        parity=result.parity,
        timings=measured(perf_counter_ns()) if result.bucket else None,
        kernels=kernels,
        launches=launches,
        profile=result.profile,
        sampled=result.sampled,
    )


_MAIN = frozenset(workload.main for workload in WORKLOADS.values())


def ran_as(configured: ConfiguredMode, profile: Sequence[StepProfile] | None) -> tuple[str, str | None]:
    """The effective mode of a request and why: a profiled step with replay must show one graph launch."""
    cuda, status = configured.mode.cuda, configured.status
    if cuda.graph_replay and status.effective == cuda.name:
        for entry in profile or ():
            # A mode that breaks the graph replays several for each step.
            replays = entry.graph_launches
            replayed = replays in (None, 1) or (status.graph_breaks > 0 and replays != 0)
            if entry.phase in _MAIN and not replayed:
                return cuda.without_replay, "graph_skipped"
    return status.effective, status.reason


@dataclass(frozen=True, slots=True)
class StepEstimates:
    """Costs per step that the job's own clocks do not show: on a CPU the newest samples of the same steps; on
    CUDA kernel seconds per step, by the step's shape, from earlier profiled steps (`sampled`) or from this
    request (`profiled`). `attached`: the profiler is, which slows all launches.
    """

    cuda: bool
    newest: Mapping[Phase, SampleCounts | None]
    kernel_per_step_seconds: Mapping[Phase, Mapping[StepShape, float]]
    kernel_source: Source
    attached: bool = False


def timings(result: JobResult, estimates: StepEstimates, done_ns: int) -> Timings:
    """What the job took, in seconds, by the definitions of `service.records.Timings`."""
    phases: dict[Phase, PhaseTimings] = {}
    until_ns = result.ended_ns
    for phase in reversed(result.workload.phases):
        readings = result.of(phase)
        phases[phase] = phase_timings(readings, phase, estimates, until_ns)
        until_ns = readings.begin[0] if readings.begin else until_ns
    return job_timings(result, phases, estimates, done_ns)


def job_timings(
    result: JobResult, phases: Mapping[Phase, PhaseTimings], estimates: StepEstimates, done_ns: int
) -> Timings:
    first = phases[result.workload.phases[0]]
    by_name: dict[str, Any] = {phase: one for phase, one in phases.items()}  # noqa: C416 - keys are any text
    measured: Source = "attached" if estimates.attached else "measured"
    dispatch_source: Source = measured if estimates.cuda else "sampled"
    kernel_source = estimates.kernel_source if estimates.cuda else "sampled"
    return Timings(
        queue_seconds=result.queue_ns / 1e9,
        **by_name,
        tokenise_seconds=result.tokenise_ns / 1e9,
        involuntary_switches=result.involuntary_switches,
        padded_prompt_tokens=result.padded_prompt_tokens,
        attended_tokens=result.attended_tokens,
        dispatch_source=dispatch_source if first.dispatch_seconds is not None else None,
        kernel_source=kernel_source if first.kernel_seconds is not None else None,
        taken_ns=result.taken_ns,
        first_token_ns=result.first_token_ns,
        done_ns=done_ns,
    )


def phase_timings(readings: Readings, phase: Phase, estimates: StepEstimates, until_ns: int) -> PhaseTimings:
    """What the steps in `readings` took, the last of which ended, with its bookkeeping, at `until_ns`."""
    if readings.unmeasured:
        # Instrumentation is off: only the number of steps is known.
        return PhaseTimings(steps=readings.steps, minor_faults=readings.minor_faults)
    if estimates.cuda:
        return _cuda_phase(readings, phase, estimates.kernel_per_step_seconds.get(phase, {}), until_ns)
    return _cpu_phase(readings, estimates.newest.get(phase), until_ns)


def _cpu_phase(readings: Readings, newest: SampleCounts | None, until_ns: int) -> PhaseTimings:
    """Dispatch is sampling and the host's share of the steps, by the job's own samples if they are enough."""
    sampling = sum(readings.sampling) / 1e9
    step_wall = sum(readings.call) / 1e9
    own = readings.samples
    enough = own is not None and own.kernel + own.host >= ENOUGH
    counts = own if enough else newest
    share = dispatch_share(counts) if counts else None
    found = low = high = None
    if share is not None:
        found, low, high = (step_wall * value + sampling for value in share)
    return PhaseTimings(
        kernel_samples=counts.kernel if counts else None,
        host_samples=counts.host if counts else None,
        system_samples=counts.system if counts else None,
        unclassified_samples=counts.unclassified if counts else None,
        samples_of=("request" if enough else "traffic") if counts else None,
        steps=readings.steps,
        wall_seconds=step_wall + sampling,
        dispatch_seconds=found,
        kernel_seconds=None if found is None else step_wall + sampling - found,
        dispatch_low_seconds=low,
        dispatch_high_seconds=high,
        minor_faults=readings.minor_faults,
        period_seconds=_period_seconds(readings, until_ns),
    )


def _period_seconds(readings: Readings, until_ns: int) -> float:
    return (until_ns - readings.begin[0]) / 1e9 if readings.begin else 0.0


def _dispatch_steps(readings: Readings, phase: Phase) -> list[int]:
    """Nanoseconds of dispatch of each step: its call, what feeds it, and the choice of its tokens, which
    follows prefill's last step alone, and every step of decode. A step that failed was fed, and is no step.
    """
    steps = [call + feed for call, feed in zip(readings.call, readings.feed, strict=False)]
    first = max(0, len(steps) - 1) if phase == "prefill" else 0
    for index, sampling in zip(range(first, len(steps)), readings.sampling, strict=False):
        steps[index] += sampling
    return steps


def _cuda_phase(
    readings: Readings, phase: Phase, kernel_per_step: Mapping[StepShape, float], until_ns: int
) -> PhaseTimings:
    """Dispatch, wait and period by the host's clock, device span by events, kernel from the profiler."""
    dispatch = (sum(readings.call) + sum(readings.sampling) + sum(readings.feed)) / 1e9
    wait = sum(readings.wait) / 1e9
    spanned = len(readings.span) == readings.steps
    kernels = [kernel_per_step[shape] for shape in readings.shapes if shape in kernel_per_step]
    return PhaseTimings(
        steps=readings.steps,
        wall_seconds=dispatch + wait,
        dispatch_seconds=dispatch,
        device_span_seconds=sum(readings.span) / 1e9 if spanned else None,
        kernel_seconds=sum(kernels) if len(kernels) == readings.steps else None,
        sync_wait_seconds=wait,
        minor_faults=readings.minor_faults,
        period_seconds=_period_seconds(readings, until_ns),
        dispatch_steps_seconds=[value / 1e9 for value in _dispatch_steps(readings, phase)],
        device_span_steps_seconds=[value / 1e9 for value in readings.span] if spanned else [],
        period_steps_seconds=[value / 1e9 for value in readings.periods(until_ns)],
    )


def totals(result: JobResult) -> tuple[int | None, int | None]:
    """Kernels and launch calls of the whole request; None where not all of it is known, or on a CPU."""
    profile = result.profile
    if not profile or not covered(result):
        return None, None

    def total(values: list[float | None]) -> int | None:
        pairs = zip(values, profile, strict=True)
        known = [value * entry.steps for value, entry in pairs if value is not None]
        return round(sum(known)) if len(known) == len(values) else None

    kernels = [entry.kernels if entry.kernel_steps == entry.steps else None for entry in profile]
    return total(kernels), total([entry.launches for entry in profile])


def covered(result: JobResult) -> bool:
    """Whether all steps of a profiled job fit into its trace."""
    return result.steps <= STEPS_PER_TRACE


EstimatesOf = Callable[[int], StepEstimates]
"""Costs per step in a batch bucket."""

PER_STEP = ("begin", "call", "feed", "sampling", "wait", "span", "shapes")

SUMS = (
    "wall_seconds", "dispatch_seconds", "device_span_seconds", "kernel_seconds", "sync_wait_seconds",
    "dispatch_low_seconds", "dispatch_high_seconds", "period_seconds",
    "kernel_samples", "host_samples", "system_samples", "unclassified_samples",
)  # fmt: skip


@dataclass(slots=True, eq=False)
class BatchStep:
    """A prefill (of one step per chunk) or a decode step in `bucket`, of `rows` sequences.

    For `stall_ns` after it its requests stood still. `counted`: a request has counted it for the metrics.
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
    """What a request of `own_rows` prompts took that shared `steps` with others.

    It waited for the whole of every step that it ran in, so its dispatch and kernel are those of all of it.
    For metrics, one that ended well counts the steps that no other has counted, and `switches`.
    """
    estimates = estimates_of(result.bucket)
    groups = _by_bucket(steps, result.ended_ns, estimates_of)
    whole = job_timings(
        result,
        {
            phase: _total(groups, phase, estimates, result.of(phase).minor_faults)
            for phase in result.workload.phases
        },
        estimates,
        done_ns,
    )
    ended_well = result.kind == "ok"
    counted: list[StepGroup] = []
    if ended_well:
        known = {step for step in steps if step.counted}
        counted = _by_bucket(steps, result.ended_ns, estimates_of, known) if known else groups
        for step in steps:
            step.counted = True
    count = sum(group.timings.steps for group in groups)
    stall_ns = sum(step.stall_ns for step in steps)
    shared = SharedWork(
        stall_seconds=stall_ns / 1e9,
        rows=sum(group.rows for group in groups) / count if count else float(own_rows),
        alone=stall_ns == 0 and all(step.rows == own_rows for step in steps),
        counted=counted,
        counted_switches=switches if ended_well else 0,
    )
    return msgspec.structs.replace(whole, shared=shared)


def _by_bucket(
    steps: Sequence[BatchStep], ended_ns: int, estimates_of: EstimatesOf, without: Collection[BatchStep] = ()
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
    """The sums of `phase` over several buckets, whose costs per step differ, without its single steps."""
    parts = [group.timings for group in groups if group.phase == phase]
    first = parts[0] if parts else phase_timings(Readings(), phase, estimates, until_ns=0)
    sums: dict[str, float | None] = {}
    for name in SUMS if len(parts) > 1 else ():
        values = [getattr(part, name) for part in parts]
        sums[name] = None if None in values else sum(values)
    return msgspec.structs.replace(
        first,
        **sums,
        samples_of=first.samples_of if all(part.samples_of for part in parts) else None,
        minor_faults=minor_faults,
        steps=sum(part.steps for part in parts),
        dispatch_steps_seconds=[],
        device_span_steps_seconds=[],
        period_steps_seconds=[],
    )
