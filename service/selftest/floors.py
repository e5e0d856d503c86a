"""Checks of the dispatch floor: it falls from mode to mode, and does not depend on the twin's width."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise

from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.measure.variants import Variants
from service.selftest.results import CheckResult, interval_result, not_measurable, worst
from service.statistics.intervals import median_interval

ROUNDS = 40
STRICT = ("eager", "no_grad", "inference_mode", "compiled")
LEAST_EAGER_OVER_COMPILED = 3.0
WIDTHS = (8, 16, 64)
WIDTHS_APART = 1.15


def ladder(variants: Variants, log: Log) -> list[CheckResult]:
    """Ratios of the floors of neighbouring modes at batch 1, and of eager over compiled."""
    modes = [mode for mode in STRICT if mode in variants.modes]
    bound = "ratio > 1, strictly"
    if len(modes) < 2:
        why = "fewer than two of its modes are served"
        return [not_measurable("floor falls down the ladder", bound, why)]
    arms = {mode: partial(variants.floor_seconds, variants.twin(mode)) for mode in modes}
    with variants.isolated():
        found = in_rounds(arms, ROUNDS, "ladder", log)
    medians = {mode: median_interval(values) for mode, values in found.items()}
    note = ", ".join(f"{mode} {interval.value * 1e6:.0f} µs" for mode, interval in medians.items())
    rows = [
        interval_result(
            f"floor of {upper} over {lower}",
            bound,
            paired_median_ratio(found[upper], found[lower]),
            least=1.0,
            note=note if upper == modes[0] else "",
            numbers={"seconds": found[upper]},
        )
        for upper, lower in pairwise(modes)
    ]
    if "eager" in found and "compiled" in found:
        ratio = paired_median_ratio(found["eager"], found["compiled"])
        rows.append(
            interval_result(
                "floor of eager over compiled",
                f"≥ {LEAST_EAGER_OVER_COMPILED:g}",
                ratio,
                least=LEAST_EAGER_OVER_COMPILED,
                numbers={"compiled_seconds": found["compiled"]},
            )
        )
    return rows


def widths(variants: Variants, log: Log) -> list[CheckResult]:
    """Per mode, the floors of twins of three widths: if their kernels took time, they would differ."""
    arms = {
        (mode, width): partial(variants.floor_seconds, variants.twin(mode, width=width))
        for mode in variants.modes
        for width in WIDTHS
    }
    with variants.isolated():
        found = in_rounds(arms, ROUNDS, "widths", log)
    return [_farthest(mode, {width: found[mode, width] for width in WIDTHS}) for mode in variants.modes]


def _farthest(mode: str, floors: Mapping[int, list[float]]) -> CheckResult:
    """Of the ratios of the other widths to the middle one: of the worst verdict, the farthest from 1."""
    smallest, middle, largest = WIDTHS
    rows = [
        interval_result(
            f"floor at widths {WIDTHS}: {mode}",
            "within 15 %",
            paired_median_ratio(floors[width], floors[middle]),
            least=1 / WIDTHS_APART,
            most=WIDTHS_APART,
            note=f"farthest: width {width} over {middle}",
            numbers={f"width_{w}_seconds": seconds for w, seconds in floors.items()},
        )
        for width in (smallest, largest)
    ]
    verdict = worst(row.verdict for row in rows)
    candidates = [row for row in rows if row.verdict == verdict]
    return max(candidates, key=lambda row: abs((row.value or 1.0) - 1))
