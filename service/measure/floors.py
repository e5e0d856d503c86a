"""Splits a step into dispatch and kernels: on a CPU by the hollow twin's floor, on CUDA by two clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

from models.served import Served
from service.measure.cases import Bench
from service.protocol.modes import MODES
from service.statistics.intervals import Interval
from service.step.buffers import allocate, prepare
from service.step.calibration import Calibration
from service.step.callables import build_step
from service.step.untimed import CALLS_TO_CAPTURE

_TWINS: WeakKeyDictionary[Bench, Served] = WeakKeyDictionary()

_CALIBRATIONS: WeakKeyDictionary[Bench, dict[tuple[int, ...], Calibration]] = WeakKeyDictionary()
"""By the buckets that have twins, because a calibration interpolates between its smallest and its largest."""


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


def prepare_floors(bench: Bench, mode: str, buckets: Sequence[int], report: Callable[[str], None]) -> None:
    """Build and warm the hollow twin's steps of `mode` at the smallest and largest of `buckets`; sample them.

    Earlier samples are dropped, so that a study's floors are of its own time. Raises NoTwin for a model that
    has none.
    """
    calibration = _calibration(bench, _ends(buckets))
    if calibration.floor(mode, buckets[0]) is None:
        report(f"building the hollow twin of {mode}")
        for bucket in _ends(buckets):
            _add_twin(bench, calibration, mode, bucket)
    calibration.discard_samples(mode)
    calibration.first_samples(mode)


def floors(bench: Bench, mode: str, buckets: Sequence[int]) -> dict[int, Interval]:
    """Dispatch seconds of a decode step at each of `buckets`, from all samples since `prepare_floors`.

    Each call adds samples. Between the smallest and the largest, floors are interpolated linearly. Empty
    where no twin was prepared for these buckets.
    """
    calibration = _CALIBRATIONS.get(bench, {}).get(_ends(buckets))
    if calibration is None:
        return {}
    calibration.first_samples(mode)
    found = {bucket: calibration.floor(mode, bucket) for bucket in buckets}
    return {
        bucket: Interval(floor.seconds, floor.low, floor.high, floor.samples)
        for bucket, floor in found.items()
        if floor is not None
    }


def _ends(buckets: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({min(buckets), max(buckets)}))


def _calibration(bench: Bench, ends: tuple[int, ...]) -> Calibration:
    if bench not in _TWINS:
        _TWINS[bench] = bench.model.twin()
    calibrations = _CALIBRATIONS.setdefault(bench, {})
    if ends not in calibrations:
        calibrations[ends] = Calibration(bench.model, _TWINS[bench])
    return calibrations[ends]


def _add_twin(bench: Bench, calibration: Calibration, mode: str, bucket: int) -> None:
    step = build_step(MODES[mode], calibration.twin_of(MODES[mode]), precision=bench.precision)
    buffers = allocate(_TWINS[bench], [bucket], 1, bench.precision.cache)[bucket]
    prepare(buffers)
    for _ in range(CALLS_TO_CAPTURE):
        step(*buffers.arguments("decode"))
    calibration.add(MODES[mode], step, buffers)


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
