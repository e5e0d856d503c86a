"""Cross-check of the floor by regression: a real decode step's time, extrapolated over widths to no work.

The family is the served model at a quarter, half, three quarters and the whole of every width, with the same
layers, heads and context. Decode at batch 1 reads every weight once and does two operations with it, so its
work and its bytes are one regressor up to a constant; bytes are taken, because memory is what it waits for,
and with them the static cache, all of which attention reads whatever the position.

Where the host issues operator by operator, the narrower models read, off the clock, what the served model's
modules have more: its host code is then as cold at every width, and what grows with the width is work alone.
Without it the cost of cold host code would count as work, which sampled native stacks contradict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import linear_regression

from models.config import Config
from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.measure.variants import Variants
from service.selftest.check import Check, NotMeasurableError
from service.selftest.results import CheckResult, interval_result
from service.statistics.intervals import median_interval

ROUNDS = 25
NAME = "intercept over four widths / floor"
QUARTERS = (1, 2, 3, 4)
BOUND = "within 25 %"
LEAST = 0.75
MOST = 1.25


def family(config: Config) -> list[Config]:
    """The model at a quarter, half, three quarters and the whole of every width.

    Raises ValueError where a width cannot be quartered, or head widths would rule out an attention backend.
    """
    sizes = (config.width, config.hidden, config.vocabulary)
    if any(size % 4 for size in sizes) or config.head_width % 32:
        raise ValueError("the model's widths cannot be quartered")
    return [
        replace(
            config,
            width=config.width * q // 4,
            hidden=config.hidden * q // 4,
            head_width=config.head_width * q // 4,
            vocabulary=config.vocabulary * q // 4,
        )
        for q in QUARTERS
    ]


def intercept(work: Sequence[float], seconds: Sequence[float]) -> float:
    """The value at no work of the line through the points by ordinary least squares.

    Raises statistics.StatisticsError for fewer than two points or work that is the same everywhere.
    """
    return linear_regression(work, seconds).intercept


def curvature(work: Sequence[float], seconds: Sequence[float]) -> float:
    """How badly a line fits: the largest residual as a share of the largest value."""
    line = linear_regression(work, seconds)
    residuals = (y - line.slope * x - line.intercept for x, y in zip(work, seconds, strict=True))
    return max(map(abs, residuals)) / max(seconds)


def bytes_read(variants: Variants, config: Config) -> float:
    """What a decode step at batch 1 reads: all weights, and the keys and values of the whole context."""
    element = variants.precision.cache.itemsize
    kept = config.layers * 2 * config.context * config.kv_heads * config.head_width * element
    return float(variants.weights_bytes(config) + kept)


def measure_intercept(variants: Variants, log: Log) -> dict[tuple[str, float | None], list[float]]:
    """Seconds by mode and the bytes that a step reads: real decode steps of four widths, None: the floor.

    Raises NotMeasurableError on CUDA, and where the widths cannot be quartered.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA dispatch is measured by itself")
    try:
        configs = family(variants.config)
    except ValueError as error:
        raise NotMeasurableError(str(error)) from error
    found: dict[tuple[str, float | None], list[float]] = {}
    for mode in variants.modes:
        found |= _measure_mode(variants, mode, configs, log)
    return found


def _measure_mode(
    variants: Variants, mode: str, configs: list[Config], log: Log
) -> dict[tuple[str, float | None], list[float]]:
    log(f"{mode}, building four widths")
    arms: dict[tuple[str, float | None], Callable[[], float]] = {
        (mode, bytes_read(variants, config)): variants.case(mode, config).steady_seconds for config in configs
    }
    arms[mode, None] = partial(variants.floor_seconds, variants.twin(mode))
    with variants.isolated():
        return in_rounds(arms, ROUNDS, f"work/{mode}", log)


def judge_intercept(found: Mapping[tuple[str, float | None], list[float]]) -> list[CheckResult]:
    """Per mode: the intercept of decode wall time over the widths against the floor, paired by round."""
    rows = []
    for mode in dict.fromkeys(mode for mode, _ in found):
        loads = sorted(load for m, load in found if m == mode and load is not None)
        rows.append(_row(mode, loads, [found[mode, load] for load in loads], found[mode, None]))
    return rows


def _row(mode: str, loads: list[float], steps: list[list[float]], floors: list[float]) -> CheckResult:
    """`steps` are the seconds of every round for each of `loads`, in bytes."""
    intercepts = [max(intercept(loads, line), 1e-9) for line in zip(*steps, strict=True)]
    walls = [median_interval(seconds).value for seconds in steps]
    note = (
        f"intercept {median_interval(intercepts).value * 1e6:.0f} µs, floor"
        f" {median_interval(floors).value * 1e6:.0f} µs; line fits within {curvature(loads, walls):.1%}"
    )
    numbers: dict[str, float | list[float]] = {
        "bytes": loads,
        "wall_seconds": walls,
        "intercept_seconds": intercepts,
        "floor_seconds": floors,
    }
    return interval_result(
        f"{NAME}: {mode}",
        BOUND,
        paired_median_ratio(intercepts, floors),
        least=LEAST,
        most=MOST,
        note=note,
        numbers=numbers,
    )


INTERCEPT = Check(measure_intercept, judge_intercept, ((NAME, BOUND),))
