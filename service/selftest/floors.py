"""The dispatch floor: it falls down the ladder, and does not depend on how hollow the twin is."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from service.measure.rounds import Say, in_rounds, paired_median_ratio
from service.measure.variants import Lab
from service.selftest.results import CheckResult, judged, not_measurable, worst
from service.statistics.intervals import median_interval

ROUNDS = 40
STRICT = ("eager", "no_grad", "inference_mode", "compiled")
LEAST_EAGER_OVER_COMPILED = 3.0
WIDTHS = (8, 16, 64)
WIDTHS_APART = 1.15


def ladder(lab: Lab, say: Say) -> list[CheckResult]:
    """The floor of every rung at batch 1, and the ratios between neighbours."""
    modes = [mode for mode in STRICT if mode in lab.modes]
    bound = "ratio > 1, strictly"
    if len(modes) < 2:
        return [
            not_measurable("floor falls down the ladder", bound, "fewer than two of its modes are served")
        ]
    twins = {mode: lab.twin(mode) for mode in modes}
    with lab.settled():
        found = in_rounds(
            {mode: partial(lab.floor_seconds, twin) for mode, twin in twins.items()}, ROUNDS, "ladder", say
        )
    medians = {mode: median_interval(values) for mode, values in found.items()}
    note = ", ".join(f"{mode} {interval.value * 1e6:.0f} µs" for mode, interval in medians.items())
    rows = [
        judged(
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
            judged(
                "floor of eager over compiled",
                f"≥ {LEAST_EAGER_OVER_COMPILED:g}",
                ratio,
                least=LEAST_EAGER_OVER_COMPILED,
                numbers={"compiled_seconds": found["compiled"]},
            )
        )
    return rows


def widths(lab: Lab, say: Say) -> list[CheckResult]:
    """Per mode, the floors of twins of three widths: were their kernels felt, the widest would read more."""
    middle, others = WIDTHS[1], (WIDTHS[0], WIDTHS[2])
    twins = {(mode, width): lab.twin(mode, width=width) for mode in lab.modes for width in WIDTHS}
    with lab.settled():
        found = in_rounds(
            {key: partial(lab.floor_seconds, twin) for key, twin in twins.items()}, ROUNDS, "widths", say
        )
    rows = []
    for mode in lab.modes:
        ratios = {width: paired_median_ratio(found[mode, width], found[mode, middle]) for width in others}
        made = {
            width: judged(
                f"floor at widths {WIDTHS}: {mode}",
                "within 15 %",
                ratio,
                least=1 / WIDTHS_APART,
                most=WIDTHS_APART,
                note=f"farthest: width {width} over {middle}",
                numbers={f"width_{w}_seconds": found[mode, w] for w in WIDTHS},
            )
            for width, ratio in ratios.items()
        }
        verdict = worst(row.verdict for row in made.values())
        candidates = [row for row in made.values() if row.verdict == verdict]
        rows.append(max(candidates, key=lambda row: abs((row.value or 1.0) - 1)))
    return rows
