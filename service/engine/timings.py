"""Raw readings of a job become the timings that are sent to the front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.engine.job_result import JobResult
from service.protocol.floors import Floor
from service.protocol.messages import Phase
from service.protocol.timings import PhaseTimings, Source, Timings
from service.statistics.sampled_share import dispatch_share
from service.step.meters import Readings


@dataclass(frozen=True, slots=True)
class StepEstimates:
    """Costs per step that the job's own clocks do not show.

    On a CPU the twin's `floors`. On CUDA kernel seconds per step and phase, from earlier profiled requests
    (`sampled`) or from this one (`profiled`).
    """

    cuda: bool
    floors: Mapping[Phase, Floor | None]
    kernel_per_step_seconds: Mapping[Phase, float | None]
    kernel_source: Source


def timings(result: JobResult, estimates: StepEstimates, done_ns: int) -> Timings:
    """What the job took, in seconds, by the definitions of `service.protocol.timings.Timings`."""
    decode_begins_ns = result.decode.begin[0] if result.decode.begin else result.ended_ns
    prefill = phase_timings(result.prefill, "prefill", estimates, decode_begins_ns)
    decode = phase_timings(result.decode, "decode", estimates, result.ended_ns)
    return job_timings(result, prefill, decode, estimates, done_ns)


def job_timings(
    result: JobResult, prefill: PhaseTimings, decode: PhaseTimings, estimates: StepEstimates, done_ns: int
) -> Timings:
    """Those of a job whose phases took `prefill` and `decode`."""
    own = prefill.kernel_samples is not None or decode.kernel_samples is not None
    dispatch_source, kernel_source = sources(estimates, own)
    return Timings(
        queue_seconds=result.queue_ns / 1e9,
        prefill=prefill,
        decode=decode,
        tokenise_seconds=result.tokenise_ns / 1e9,
        involuntary_switches=result.involuntary_switches,
        padded_prompt_tokens=result.padded_prompt_tokens,
        attended_tokens=result.attended_tokens,
        dispatch_source=dispatch_source if prefill.dispatch_seconds is not None else None,
        kernel_source=kernel_source if prefill.kernel_seconds is not None else None,
        taken_ns=result.taken_ns,
        first_token_ns=result.first_token_ns,
        done_ns=done_ns,
    )


def phase_timings(readings: Readings, phase: Phase, estimates: StepEstimates, until_ns: int) -> PhaseTimings:
    """What the steps in `readings` took, the last of which ended, with its bookkeeping, at `until_ns`."""
    if readings.unmeasured:
        # Instrumentation is off: only the number of steps is known.
        return PhaseTimings(
            steps=readings.steps,
            wall_seconds=None,
            dispatch_seconds=None,
            device_span_seconds=None,
            kernel_seconds=None,
            sync_wait_seconds=None,
            minor_faults=readings.minor_faults,
        )
    if estimates.cuda:
        return _cuda_phase(readings, phase, estimates.kernel_per_step_seconds.get(phase), until_ns)
    return _cpu_phase(readings, estimates.floors.get(phase), until_ns)


def sources(estimates: StepEstimates, own_samples: bool = False) -> tuple[Source, Source]:
    """How dispatch and kernel are found, where they are."""
    if estimates.cuda:
        return "measured", estimates.kernel_source
    return "sampled" if own_samples else _estimated(estimates), "residual"


def _estimated(estimates: StepEstimates) -> Source:
    """How dispatch is estimated on a CPU: by sampled stacks where all phases have them, else by the twin."""
    floors = [floor for floor in estimates.floors.values() if floor is not None]
    return "sampled" if floors and all(floor.stacks for floor in floors) else "calibrated"


def _cpu_phase(readings: Readings, floor: Floor | None, until_ns: int) -> PhaseTimings:
    """Dispatch is the share of its own samples, and kernel what remains of the wall.

    Without samples of its own it is `min(steps × a step's dispatch, wall)`.
    """
    sampling = sum(readings.sampling) / 1e9
    step_wall = sum(readings.call) / 1e9
    found = low = high = None
    clipped = False
    own = readings.samples
    share = None if own is None else dispatch_share(*own)
    if share is not None:
        found, low, high = (step_wall * value + sampling for value in share)
    elif floor is not None:
        estimate, least, most = _dispatch(floor, readings.steps, step_wall)
        clipped = estimate > step_wall
        found, low, high = (min(value, step_wall) + sampling for value in (estimate, least, most))
    return PhaseTimings(
        kernel_samples=own.kernel if own else None,
        host_samples=own.host if own else None,
        unnamed_samples=own.unnamed if own else None,
        steps=readings.steps,
        wall_seconds=step_wall + sampling,
        dispatch_seconds=found,
        device_span_seconds=None,
        kernel_seconds=None if found is None else step_wall + sampling - found,
        sync_wait_seconds=None,
        dispatch_low_seconds=low,
        dispatch_high_seconds=high,
        clipped=clipped,
        minor_faults=readings.minor_faults,
        period_seconds=_period_seconds(readings, until_ns),
    )


def _dispatch(floor: Floor, steps: int, wall_seconds: float) -> tuple[float, float, float]:
    """Dispatch of `steps` steps that took `wall_seconds`: its value and the ends of its interval.

    The machine has changed since stacks were sampled. Either a step's dispatch is still the same in seconds,
    which gives the value, or its share of the step is: the interval allows both.
    """
    value, low, high = (steps * seconds for seconds in floor.dispatch())
    if floor.stacks is not None:
        low = min(low, wall_seconds * (1 - floor.stacks.high))
        high = max(high, wall_seconds * (1 - floor.stacks.low))
    return value, low, high


def _period_seconds(readings: Readings, until_ns: int) -> float:
    """All the time of a phase, from its first call to `until_ns`; 0 for a phase without steps."""
    return (until_ns - readings.begin[0]) / 1e9 if readings.begin else 0.0


def _dispatch_steps(readings: Readings, phase: Phase) -> list[int]:
    """Nanoseconds of dispatch of each step: its call, what feeds it, and the choice of its tokens.

    A step that failed has been fed and did not return: it is no step. Tokens are chosen after prefill's last
    step alone, and after every step of decode, up to the last that may not take the greedy token.
    """
    steps = [call + feed for call, feed in zip(readings.call, readings.feed, strict=False)]
    first = max(0, len(steps) - 1) if phase == "prefill" else 0
    for index, sampling in zip(range(first, len(steps)), readings.sampling, strict=False):
        steps[index] += sampling
    return steps


def _cuda_phase(
    readings: Readings, phase: Phase, kernel_per_step: float | None, until_ns: int
) -> PhaseTimings:
    """Dispatch, wait and period by the host's clock, device span by events, kernel from the profiler."""
    dispatch = (sum(readings.call) + sum(readings.sampling) + sum(readings.feed)) / 1e9
    wait = sum(readings.wait) / 1e9
    spanned = len(readings.span) == readings.steps
    return PhaseTimings(
        steps=readings.steps,
        wall_seconds=dispatch + wait,
        dispatch_seconds=dispatch,
        device_span_seconds=sum(readings.span) / 1e9 if spanned else None,
        kernel_seconds=None if kernel_per_step is None else readings.steps * kernel_per_step,
        sync_wait_seconds=wait,
        minor_faults=readings.minor_faults,
        period_seconds=_period_seconds(readings, until_ns),
        dispatch_steps_seconds=[value / 1e9 for value in _dispatch_steps(readings, phase)],
        device_span_steps_seconds=[value / 1e9 for value in readings.span] if spanned else [],
        period_steps_seconds=[value / 1e9 for value in readings.periods(until_ns)],
    )
