"""The cost of measuring: a step's time with full instrumentation over that with none."""

from __future__ import annotations

from statistics import median
from time import perf_counter_ns

from service.measure.cases import Case
from service.measure.rounds import Log, paired_median_ratio
from service.measure.variants import Variants
from service.selftest.results import CheckResult, interval_result
from service.step.meters import Meter, Readings, new_meter

BLOCKS = 80
STEPS_PER_BLOCK = 8
UNCOUNTED = 2
"""First steps of a block that are run and not counted."""

MOST_SHARE = 1.01


def full_against_off(variants: Variants, log: Log) -> list[CheckResult]:
    """Step time with full instrumentation over that without, in the mode whose steps are shortest.

    The two take turns step by step, so that a disturbance of the machine affects both.
    """
    mode = variants.modes[-1]
    case = variants.case(mode)
    meters = [new_meter(variants.device, 1, "full"), new_meter(variants.device, 1, "off")]
    full: list[float] = []
    off: list[float] = []
    with variants.isolated():
        for number in range(BLOCKS):
            log(f"block {number + 1} of {BLOCKS}")
            block = _block_seconds(meters, case, number)
            full.append(median(block[0]))
            off.append(median(block[1]))
    return [
        interval_result(
            "instrumentation full / off, step time",
            "≤ 1.01",
            paired_median_ratio(full, off),
            most=MOST_SHARE,
            note=f"{mode}, steps of {median(off) * 1e6:.0f} µs",
            numbers={"full_seconds": full, "off_seconds": off},
        )
    ]


def _block_seconds(meters: list[Meter], case: Case, number: int) -> tuple[list[float], list[float]]:
    """Seconds of steps by either meter in turn; odd blocks begin with the second."""
    block: tuple[list[float], list[float]] = [], []
    for turn in range(2 * STEPS_PER_BLOCK + UNCOUNTED):
        which = (turn + number) % 2
        seconds = _step_seconds(meters[which], case)
        if turn >= UNCOUNTED:
            block[which].append(seconds)
    return block


def _step_seconds(meter: Meter, case: Case) -> float:
    readings = Readings()
    began = perf_counter_ns()
    _, greedy = meter.run(case.step, case.arguments, readings)
    meter.fetch(greedy, readings)
    return (perf_counter_ns() - began) / 1e9
