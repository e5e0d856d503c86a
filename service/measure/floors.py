"""Splits a step into dispatch and kernels: on a CPU by the hollow twin's floor, on CUDA by two clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

from models.served import Served
from service.measure.cases import WARM_CALLS, Bench
from service.protocol.modes import MODES
from service.statistics.intervals import Interval
from service.step.calibration import Calibration, prepare
from service.step.callables import allocate, build_step

_TWINS: WeakKeyDictionary[Bench, Served] = WeakKeyDictionary()

_CALIBRATIONS: WeakKeyDictionary[Bench, dict[int, Calibration]] = WeakKeyDictionary()
"""One per bucket, because a calibration interpolates between its smallest bucket and its largest."""


@dataclass(frozen=True, slots=True)
class DispatchSplit:
    """Dispatch and kernels of a step, in seconds.

    `calibrated`, on a CPU: dispatch is a lower estimate, the hollow twin's floor at decode (also for a
    prefill chunk), and kernel is the rest of the step, an upper one. `measured`, on CUDA: dispatch ends when
    the call returns, kernel is timed by the device, and the two overlap.
    """

    dispatch: Interval
    kernel: Interval
    source: Literal["calibrated", "measured"]


def prepare_floor(bench: Bench, mode: str, bucket: int, report: Callable[[str], None]) -> None:
    """Build and warm the hollow twin's step of `mode` at `bucket`, and sample it anew.

    Earlier samples are dropped, so that a study's floor is of its own time. Raises NoTwin for a model that
    has none.
    """
    calibration = _calibration(bench, bucket)
    if calibration.floor(mode, bucket) is None:
        report(f"building the hollow twin of {mode}")
        step = build_step(MODES[mode], calibration.twin_of(MODES[mode]), precision=bench.precision)
        buffers = allocate(_TWINS[bench], [bucket], 1, bench.precision.cache)[bucket]
        prepare(buffers)
        for _ in range(WARM_CALLS):
            step(*buffers.arguments("decode"))
        calibration.add(MODES[mode], step, buffers)
    calibration.forget_samples(mode)
    calibration.first_samples(mode)


def _calibration(bench: Bench, bucket: int) -> Calibration:
    if bench not in _TWINS:
        _TWINS[bench] = bench.model.twin()
    calibrations = _CALIBRATIONS.setdefault(bench, {})
    if bucket not in calibrations:
        calibrations[bucket] = Calibration(bench.model, _TWINS[bench])
    return calibrations[bucket]


def floor(bench: Bench, mode: str, bucket: int) -> Interval | None:
    """Dispatch seconds of a decode step, from all samples since `prepare_floor`; each call adds samples.

    None where no twin was prepared.
    """
    calibration = _CALIBRATIONS.get(bench, {}).get(bucket)
    if calibration is None:
        return None
    calibration.first_samples(mode)
    found = calibration.floor(mode, bucket)
    return None if found is None else Interval(found.seconds, found.low, found.high, found.samples)


def split_by_floor(floor: Interval, wall: Interval) -> DispatchSplit:
    """A step of `wall` seconds on a CPU into its floor and the rest. A floor above the step is cut to it."""

    def capped(value: float) -> float:
        return min(value, wall.value)

    dispatch = Interval(capped(floor.value), capped(floor.low), capped(floor.high), floor.samples)
    kernel = Interval(
        wall.value - dispatch.value,
        max(0.0, wall.low - floor.high),
        max(0.0, wall.high - floor.low),
        wall.samples,
    )
    return DispatchSplit(dispatch, kernel, "calibrated")


def measured_split(dispatch: Interval, kernel_seconds: float) -> DispatchSplit:
    """On CUDA: the seconds until the call returns, beside the profiler's kernel seconds of one step."""
    return DispatchSplit(dispatch, Interval(kernel_seconds, kernel_seconds, kernel_seconds, 1), "measured")
