"""Checks of the dispatch floor: it falls from mode to mode, and does not depend on the twin's width."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise

from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.measure.variants import Variants
from service.selftest.check import Check, NotMeasurableError
from service.selftest.results import CheckResult, interval_result
from service.statistics.intervals import median_interval

ROUNDS = 40
STRICT = ("eager", "no_grad", "inference_mode", "compiled")
FALLS = "ratio > 1, strictly"
LEAST_EAGER_OVER_COMPILED = 3.0
WIDTHS = (8, 16)
"""Half of the twin's own width, and its own."""

WIDTHS_APART = 1.15


def measure_ladder(variants: Variants, log: Log) -> dict[str, list[float]]:
    """Floors at batch 1 by mode, in seconds. Raises NotMeasurableError below two modes."""
    modes = [mode for mode in STRICT if mode in variants.modes]
    if len(modes) < 2:
        raise NotMeasurableError("fewer than two of its modes are served")
    arms = {mode: partial(variants.floor_seconds, variants.twin(mode)) for mode in modes}
    with variants.isolated():
        return in_rounds(arms, ROUNDS, "ladder", log)


def judge_ladder(found: Mapping[str, list[float]]) -> list[CheckResult]:
    """Ratios of the floors of neighbouring modes, and of eager over compiled."""
    modes = [mode for mode in STRICT if mode in found]
    shown = (f"{mode} {median_interval(found[mode]).value * 1e6:.0f} µs" for mode in modes)
    notes = {modes[0]: ", ".join(shown)}
    rows = [
        interval_result(
            f"floor of {upper} over {lower}",
            FALLS,
            paired_median_ratio(found[upper], found[lower]),
            least=1.0,
            note=notes.get(upper, ""),
            numbers={"seconds": found[upper]},
        )
        for upper, lower in pairwise(modes)
    ]
    if "eager" in found and "compiled" in found:
        rows.append(_eager_over_compiled(found["eager"], found["compiled"]))
    return rows


def _eager_over_compiled(eager: list[float], compiled: list[float]) -> CheckResult:
    return interval_result(
        "floor of eager over compiled",
        f"≥ {LEAST_EAGER_OVER_COMPILED:g}",
        paired_median_ratio(eager, compiled),
        least=LEAST_EAGER_OVER_COMPILED,
        numbers={"compiled_seconds": compiled},
    )


def measure_widths(variants: Variants, log: Log) -> dict[tuple[str, int], list[float]]:
    """Floors of twins of both widths by mode and width, in seconds."""
    arms = {
        (mode, width): partial(variants.floor_seconds, variants.twin(mode, width=width))
        for mode in variants.modes
        for width in WIDTHS
    }
    with variants.isolated():
        return in_rounds(arms, ROUNDS, "widths", log)


def judge_widths(found: Mapping[tuple[str, int], list[float]]) -> list[CheckResult]:
    """Per mode, whether the floors differ: they would if the twin's kernels took time."""
    modes = dict.fromkeys(mode for mode, _ in found)
    return [_widths_row(mode, *(found[mode, width] for width in WIDTHS)) for mode in modes]


def _widths_row(mode: str, half: list[float], own: list[float]) -> CheckResult:
    return interval_result(
        f"floor at width {WIDTHS[0]} over {WIDTHS[1]}: {mode}",
        "within 15 %",
        paired_median_ratio(half, own),
        least=1 / WIDTHS_APART,
        most=WIDTHS_APART,
        numbers={f"width_{w}_seconds": s for w, s in zip(WIDTHS, (half, own), strict=True)},
    )


LADDER = Check(measure_ladder, judge_ladder, (("floor of", FALLS),))
WIDTHS_CHECK = Check(measure_widths, judge_widths)
