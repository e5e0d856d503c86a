"""Raw readings of a run become the timings that cross the border."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.engine.generation import Run
from service.protocol.messages import Phase, PhaseTimings, Source, Timings
from service.protocol.status import Floor
from service.step.calibration import dispatch_share
from service.step.meters import Readings


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What is known besides a run's own clocks.

    On a CPU the twin's `floor`. On CUDA kernel seconds per step and phase, learnt from profiled requests
    (`sampled`) or seen in this very one (`profiled`).
    """

    cuda: bool
    floor: Floor | None
    kernel_per_step_seconds: Mapping[Phase, float | None]
    kernel_source: Source


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Where a job stood in time; instants and durations in nanoseconds."""

    queue_ns: int
    taken_ns: int
    done_ns: int


def timings(run: Run, costs: StepCosts, times: JobTimes) -> Timings:
    """What `run` took, in seconds, by the definitions of `service.protocol.messages.Timings`."""
    prefill = _phase(run.prefill, "prefill", costs)
    decode = _phase(run.decode, "decode", costs)
    dispatch_source: Source = "measured" if costs.cuda else "calibrated"
    kernel_source: Source = costs.kernel_source if costs.cuda else "residual"
    return Timings(
        queue_seconds=times.queue_ns / 1e9,
        prefill=prefill,
        decode=decode,
        tokenise_seconds=run.tokenise_ns / 1e9,
        involuntary_switches=run.involuntary_switches,
        dispatch_source=dispatch_source if prefill.dispatch_seconds is not None else None,
        kernel_source=kernel_source if prefill.kernel_seconds is not None else None,
        taken_ns=times.taken_ns,
        first_token_ns=run.first_token_ns,
        done_ns=times.done_ns,
    )


def _phase(readings: Readings, phase: Phase, costs: StepCosts) -> PhaseTimings:
    if readings.unmeasured:
        # Instrumentation is off: that the steps ran is all there is to say.
        return PhaseTimings(
            steps=readings.steps,
            wall_seconds=None,
            dispatch_seconds=None,
            device_span_seconds=None,
            kernel_seconds=None,
            sync_wait_seconds=None,
        )
    if costs.cuda:
        return _cuda_phase(readings, costs.kernel_per_step_seconds.get(phase))
    return _cpu_phase(readings, costs.floor)


def _cpu_phase(readings: Readings, floor: Floor | None) -> PhaseTimings:
    """Dispatch from the twin's decode floor (prefill takes it too); kernel is what remains of the wall."""
    sampling = sum(readings.sampling) / 1e9
    step_wall = sum(readings.call) / 1e9
    wall = step_wall + sampling
    dispatch = None
    if floor is not None:
        dispatch = dispatch_share(floor.seconds, readings.steps, step_wall) + sampling
    return PhaseTimings(
        steps=readings.steps,
        wall_seconds=wall,
        dispatch_seconds=dispatch,
        device_span_seconds=None,
        kernel_seconds=None if dispatch is None else wall - dispatch,
        sync_wait_seconds=None,
    )


def _cuda_phase(readings: Readings, kernel_per_step: float | None) -> PhaseTimings:
    """Dispatch and wait by the host's clock, device span by events, kernel from the profiler."""
    dispatch = (sum(readings.call) + sum(readings.sampling)) / 1e9
    wait = sum(readings.wait) / 1e9
    spanned = len(readings.span) == readings.steps
    return PhaseTimings(
        steps=readings.steps,
        wall_seconds=dispatch + wait,
        dispatch_seconds=dispatch,
        device_span_seconds=sum(readings.span) / 1e9 if spanned else None,
        kernel_seconds=None if kernel_per_step is None else readings.steps * kernel_per_step,
        sync_wait_seconds=wait,
        dispatch_steps_seconds=[value / 1e9 for value in readings.call],
        device_span_steps_seconds=[value / 1e9 for value in readings.span] if spanned else [],
    )
