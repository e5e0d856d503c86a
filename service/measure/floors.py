"""Splits a step into dispatch and kernels: on a CPU by the hollow twin's floor, on CUDA by two clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

from models.served import Served
from service.measure.cases import Bench
from service.protocol.messages import Phase
from service.protocol.modes import MODES
from service.statistics.intervals import Interval
from service.step.calibration import Calibration, twin_inputs
from service.step.callables import build_step
from service.step.untimed import CALLS_TO_CAPTURE

_TWINS: WeakKeyDictionary[Bench, Served] = WeakKeyDictionary()

_CALIBRATIONS: WeakKeyDictionary[Bench, Calibration] = WeakKeyDictionary()


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


def prepare_floors(
    bench: Bench,
    mode: str,
    buckets: Sequence[int],
    report: Callable[[str], None],
    phases: Sequence[Phase] = ("decode",),
) -> None:
    """Build and warm the hollow twin's steps of `mode` at each of `buckets`; sample them.

    Prefill has one twin, at the smallest bucket. Earlier samples are dropped, so that a study's floors are of
    its own time. Raises NoTwin for a model that has none.
    """
    calibration = _calibration(bench)
    wanted: set[tuple[Phase, int]] = {("decode", bucket) for bucket in buckets}
    if "prefill" in phases:
        wanted.add(("prefill", min(buckets)))
    if missing := wanted - {(twin.phase, twin.bucket) for twin in calibration.twins(mode)}:
        report(f"building the hollow twin of {mode}")
        _add_twins(bench, calibration, mode, missing)
    calibration.discard_samples(mode)
    calibration.first_samples(mode)


def floors(bench: Bench, mode: str, buckets: Sequence[int], phase: Phase = "decode") -> dict[int, Interval]:
    """Dispatch seconds of a step at each of `buckets`, from all samples since `prepare_floors`.

    Each call adds samples. Empty where no twin was prepared.
    """
    calibration = _CALIBRATIONS.get(bench)
    if calibration is None:
        return {}
    calibration.first_samples(mode)
    return {bucket: interval for bucket in buckets if (interval := _floor(calibration, mode, phase, bucket))}


def new_floors(
    bench: Bench, mode: str, buckets: Sequence[int], phases: Sequence[Phase]
) -> dict[tuple[Phase, int], Interval]:
    """Dispatch seconds by phase and bucket, of fresh samples alone. Raises NoTwin."""
    prepare_floors(bench, mode, buckets, lambda text: None, phases)
    calibration = _calibration(bench)
    return {
        (phase, bucket): interval
        for phase in phases
        for bucket in buckets
        if (interval := _floor(calibration, mode, phase, bucket))
    }


def _floor(calibration: Calibration, mode: str, phase: Phase, bucket: int) -> Interval | None:
    floor = calibration.floor(mode, phase, bucket)
    return Interval(floor.seconds, floor.low, floor.high, floor.samples) if floor else None


def _calibration(bench: Bench) -> Calibration:
    if bench not in _CALIBRATIONS:
        _TWINS[bench] = bench.model.twin()
        _CALIBRATIONS[bench] = Calibration(bench.model, _TWINS[bench])
    return _CALIBRATIONS[bench]


def _add_twins(bench: Bench, calibration: Calibration, mode: str, missing: set[tuple[Phase, int]]) -> None:
    real = next(iter(bench.buffers.values()))
    buckets = sorted({bucket for _, bucket in missing})
    for phase, bucket, arguments in twin_inputs(_TWINS[bench], buckets, bench.precision.cache, real):
        if (phase, bucket) in missing:
            step = build_step(MODES[mode], calibration.twin_of(MODES[mode]), precision=bench.precision)
            for _ in range(CALLS_TO_CAPTURE):
                step(*arguments)
            calibration.add(MODES[mode], phase, bucket, step, arguments)


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


def measured_split(dispatch: Interval, kernel: Interval) -> DispatchSplit:
    """On CUDA: the seconds until the call returns, beside the profiler's kernel seconds of a step."""
    return DispatchSplit(dispatch, kernel, "measured")
