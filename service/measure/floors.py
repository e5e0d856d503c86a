"""Dispatch of a step as the product says it: on a CPU the hollow twin's floor, on CUDA the call itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal
from weakref import WeakKeyDictionary

import msgspec

from models.served import Served
from service.measure.cases import WARM_CALLS, Bench
from service.measure.estimate import Estimate
from service.protocol.modes import MODES
from service.protocol.status import Floor
from service.step.calibration import Calibration, prepare
from service.step.callables import allocate, build_step

_TWIN: WeakKeyDictionary[Bench, Served] = WeakKeyDictionary()

_CALIBRATIONS: WeakKeyDictionary[Bench, dict[int, Calibration]] = WeakKeyDictionary()
"""One per bucket, because a calibration interpolates between its smallest bucket and its largest."""


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """Host seconds of a step's dispatch, with its 95 % interval, and those of its kernels.

    `calibrated`, on a CPU: `seconds` is a lower estimate, from the hollow twin at decode, which a prefill
    chunk takes too; `kernel_seconds` is the rest of the step, an upper one; `share` is of the step.
    `measured`, on CUDA: `seconds` is the time until the call returns and `kernel_seconds` the device's. The
    two overlap, and `share` is of their sum.
    """

    seconds: float
    low: float | None
    high: float | None
    share: float
    kernel_seconds: float
    source: Literal["calibrated", "measured"]


def prepare_floor(bench: Bench, mode: str, bucket: int, report: Callable[[str], None]) -> None:
    """Build, and where the mode says so compile, the hollow twin's step, and begin its samples anew.

    So a study's floor is of now, not of earlier studies. Raises NoTwin for a model that has none.
    """
    if bench not in _TWIN:
        _TWIN[bench] = bench.model.twin()
    twin = _TWIN[bench]
    calibrations = _CALIBRATIONS.setdefault(bench, {})
    if bucket not in calibrations:
        calibrations[bucket] = Calibration(bench.model, twin)
    if calibrations[bucket].floor(mode, bucket) is None:
        report(f"building the hollow twin of {mode}")
        step = build_step(MODES[mode], calibrations[bucket].twin_of(MODES[mode]), precision=bench.precision)
        buffers = allocate(twin, [bucket], 1, bench.precision.cache)[bucket]
        prepare(buffers)
        for _ in range(WARM_CALLS):
            step(*buffers.arguments("decode"))
        calibrations[bucket].add(MODES[mode], step, buffers)
    calibrations[bucket].forget_samples(mode)
    calibrations[bucket].first_samples(mode)


def floor(bench: Bench, mode: str, bucket: int) -> Floor | None:
    """The floor of a decode step, from all samples since `prepare_floor` and more at each call.

    None where no twin was prepared.
    """
    calibration = _CALIBRATIONS.get(bench, {}).get(bucket)
    if calibration is None:
        return None
    calibration.first_samples(mode)
    return calibration.floor(mode, bucket)


def calibrated(found: Floor | None, whole: Estimate) -> Dispatch | None:
    """Dispatch and what is left of a step of `whole` on a CPU; a floor above the step is the step.

    None without a floor.
    """
    if found is None:
        return None
    step = whole.median_seconds
    seconds = min(found.seconds, step)
    return Dispatch(
        seconds=seconds,
        low=min(found.low, step),
        high=min(found.high, step),
        share=seconds / step,
        kernel_seconds=step - seconds,
        source="calibrated",
    )


def measured(dispatch: Estimate, kernel_seconds: float) -> Dispatch:
    """On CUDA the call returns when everything is issued, and kernels are timed by the device."""
    seconds = dispatch.median_seconds
    return Dispatch(
        seconds=seconds,
        low=dispatch.low,
        high=dispatch.high,
        share=seconds / (seconds + kernel_seconds),
        kernel_seconds=kernel_seconds,
        source="measured",
    )
