"""First witness for the floor: what a real decode step takes once its work is extrapolated to nothing.

The family is the served model at a quarter, half, three quarters and the whole of every width, with the same
layers, heads and context. Decode at batch 1 reads every weight once and does two operations with it, so its
work and its bytes are one regressor up to a constant; bytes are taken, because memory is what it waits for,
and with them the static cache, all of which attention reads whatever the position.

Where the host issues operator by operator, the narrower models read, off the clock, what the served model's
modules have more: its host code is then as cold at every width, and what grows with the width is work alone.
Left out, the price of that cold would be booked as work, and sampled native stacks contradict it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from models.config import Config
from service.measure.rounds import Say, in_rounds, paired_median_ratio
from service.measure.variants import Lab
from service.selftest.regression import curvature, intercept
from service.selftest.results import CheckResult, judged, not_measurable
from service.statistics.intervals import median_interval

ROUNDS = 25
QUARTERS = (1, 2, 3, 4)
BOUND = "within 25 %"
LEAST, MOST = 0.75, 1.25


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


def bytes_read(lab: Lab, config: Config) -> float:
    """What a decode step at batch 1 reads: all weights, and the keys and values of the whole context."""
    element = lab.precision.cache.itemsize
    kept = config.layers * 2 * config.context * config.kv_heads * config.head_width * element
    return float(lab.weights_bytes(config) + kept)


def work(lab: Lab, say: Say) -> list[CheckResult]:
    """Per mode: the intercept of decode wall time over four widths against the floor, paired by round."""
    name = "intercept over four widths / floor"
    if lab.device.type != "cpu":
        return [not_measurable(name, BOUND, "on CUDA dispatch is measured by itself")]
    try:
        configs = family(lab.config)
    except ValueError as error:
        return [not_measurable(name, BOUND, str(error))]
    return [_mode(lab, mode, configs, say) for mode in lab.modes]


def _mode(lab: Lab, mode: str, configs: list[Config], say: Say) -> CheckResult:
    say(f"{mode}, building four widths")
    cases = {config: lab.case(mode, config) for config in configs}
    twin, loads = lab.twin(mode), [bytes_read(lab, config) for config in configs]
    arms: dict[Config | None, Callable[[], float]] = {
        config: case.decode_seconds for config, case in cases.items()
    }
    arms[None] = partial(lab.floor_seconds, twin)
    with lab.settled():
        found = in_rounds(arms, ROUNDS, f"work/{mode}", say)
    lines = list(zip(*(found[config] for config in configs), strict=True))
    intercepts = [max(intercept(loads, line), 1e-9) for line in lines]
    ratio = paired_median_ratio(intercepts, found[None])
    walls = [median_interval(found[config]).value for config in configs]
    note = (
        f"intercept {median_interval(intercepts).value * 1e6:.0f} µs, floor"
        f" {median_interval(found[None]).value * 1e6:.0f} µs; line fits within {curvature(loads, walls):.1%}"
    )
    numbers: dict[str, float | list[float]] = {
        "bytes": loads,
        "wall_seconds": walls,
        "intercept_seconds": intercepts,
        "floor_seconds": found[None],
    }
    return judged(
        f"intercept over four widths / floor: {mode}",
        BOUND,
        ratio,
        least=LEAST,
        most=MOST,
        note=note,
        numbers=numbers,
    )
