"""Raw readings of a run become the timings that cross the border."""

from __future__ import annotations

from service.border.messages import Floor, PhaseTimings, Timings
from service.engine.generation import Run
from service.step.calibration import dispatch_share
from service.step.meters import Readings


def timings(run: Run, floor: Floor | None, cuda: bool, queue_ns: int, taken_ns: int, done_ns: int) -> Timings:
    """What `run` took, in seconds, by the definitions of `service.border.messages.Timings`."""
    phase = _cuda_phase if cuda else _cpu_phase
    known = cuda or floor is not None
    return Timings(
        queue_seconds=queue_ns / 1e9,
        prefill=phase(run.prefill, floor),
        decode=phase(run.decode, floor),
        tokenise_seconds=run.tokenise_ns / 1e9,
        involuntary_switches=run.involuntary_switches,
        dispatch_source=("measured" if cuda else "calibrated") if known else None,
        kernel_source=None if cuda or not known else "residual",
        taken_ns=taken_ns, first_token_ns=run.first_token_ns, done_ns=done_ns,
    )  # fmt: skip


def _cpu_phase(readings: Readings, floor: Floor | None) -> PhaseTimings:
    """Dispatch from the twin's decode floor (prefill takes it too); kernel is what remains of the wall."""
    steps, sampling = len(readings.call), sum(readings.sampling) / 1e9
    step_wall = sum(readings.call) / 1e9
    dispatch = None if floor is None else dispatch_share(floor.seconds, steps, step_wall) + sampling
    wall = step_wall + sampling
    return PhaseTimings(
        steps=steps, wall_seconds=wall, dispatch_seconds=dispatch, device_span_seconds=None,
        kernel_seconds=None if dispatch is None else wall - dispatch, sync_wait_seconds=None,
    )  # fmt: skip


def _cuda_phase(readings: Readings, floor: Floor | None) -> PhaseTimings:
    """Dispatch and wait by the host's clock, device span by events; kernel time needs the profiler."""
    dispatch = (sum(readings.call) + sum(readings.sampling)) / 1e9
    wait = sum(readings.wait) / 1e9
    measured = len(readings.span) == len(readings.call)
    return PhaseTimings(
        steps=len(readings.call), wall_seconds=dispatch + wait, dispatch_seconds=dispatch,
        device_span_seconds=sum(readings.span) / 1e9 if measured else None,
        kernel_seconds=None, sync_wait_seconds=wait,
        dispatch_steps_seconds=[value / 1e9 for value in readings.call],
        device_span_steps_seconds=[value / 1e9 for value in readings.span] if measured else [],
    )  # fmt: skip
