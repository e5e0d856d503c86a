"""Check of what is booked as kernel: modes that run the same kernels must show the same kernel time.

Eager, no_grad and inference_mode differ in what the host does around each operator, and in the memory that a
tape holds on to. Where such a price is booked as kernel, their kernel times differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from models.served import NoTwin
from service.measure.cases import Bench
from service.measure.floors import floors, prepare_floors
from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.protocol.messages import Phase
from service.selftest.check import Check, NotMeasurableError
from service.selftest.results import CheckResult, interval_result
from service.statistics.intervals import median_interval

ROUNDS = 14
STEPS = 3
PLAIN = ("eager", "no_grad", "inference_mode")
PHASES: tuple[Phase, ...] = ("prefill", "decode")
NAME = "kernel time equal in the plain modes"
BOUND = "within 10 %"
APART = 0.10
NO_RATIO = 1e3
"""In place of the ratio of a round in which a floor above the step leaves no kernel time: far outside."""


class Place(NamedTuple):
    """Mode, phase and batch bucket of a step."""

    mode: str
    phase: Phase
    bucket: int


Found = dict[tuple[Place, str], list[float]]
"""Seconds of `wall` and `floor` per round."""


def phase_floors(bench: Bench, mode: str, buckets: Sequence[int]) -> dict[Place, float]:
    """Floors of `mode` from new samples, in seconds. Raises NoTwin.

    The one place that knows whose floor a phase has: prefill takes decode's.
    """
    prepare_floors(bench, mode, buckets, lambda text: None)
    found = floors(bench, mode, buckets)
    return {Place(mode, phase, bucket): found[bucket].value for phase in PHASES for bucket in buckets}


def measure_plain(variants: Variants, log: Log) -> Found:
    """Walls and floors per mode, phase and bucket. Raises NotMeasurableError on CUDA and without a twin."""
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA kernels are timed by the device")
    modes = [mode for mode in PLAIN if mode in variants.modes]
    if PLAIN[0] not in modes or len(modes) < 2:
        raise NotMeasurableError(f"it compares with {PLAIN[0]}, and at least two of its modes must be served")
    bench = Bench(variants.settings)
    try:
        with variants.isolated():
            return measure_places(bench, modes, bench.settings.batch_sizes, log)
    except NoTwin as error:
        raise NotMeasurableError(str(error)) from error


def measure_places(bench: Bench, modes: Sequence[str], buckets: Sequence[int], log: Log) -> Found:
    """Every arm once per round: each place's wall, each mode's floors."""
    walls: dict[Place, Callable[[], float]] = {
        Place(mode, phase, bucket): partial(bench.case(mode, bucket, phase).steady_seconds, STEPS)
        for mode in modes
        for phase in PHASES
        for bucket in buckets
    }

    def wall(place: Place) -> dict[Place, float]:
        return {place: walls[place]()}

    arms: dict[Place | str, Callable[[], dict[Place, float]]] = {
        **{place: partial(wall, place) for place in walls},
        **{mode: partial(phase_floors, bench, mode, buckets) for mode in modes},
    }
    found = in_rounds(arms, ROUNDS, "plain-kernels", log)
    return {
        **{(place, "wall"): [seen[place] for seen in found[place]] for place in walls},
        **{(place, "floor"): [seen[place] for seen in found[place.mode]] for place in walls},
    }


def judge_plain(found: Mapping[tuple[Place, str], list[float]]) -> list[CheckResult]:
    """Per phase and bucket, the other modes' kernel time over eager's, paired by round."""
    places = list(dict.fromkeys(place for place, _ in found))
    return [
        _row(place, kernels(found, place), kernels(found, place._replace(mode=PLAIN[0])))
        for place in sorted(places, key=lambda place: (place.phase, place.bucket))
        if place.mode != PLAIN[0]
    ]


def kernels(found: Mapping[tuple[Place, str], list[float]], place: Place) -> list[float]:
    """Wall less floor of every round, in seconds."""
    return [w - f for w, f in zip(found[place, "wall"], found[place, "floor"], strict=True)]


def _row(place: Place, seconds: list[float], eager: list[float]) -> CheckResult:
    ratios = [a / b if a > 0 and b > 0 else NO_RATIO for a, b in zip(seconds, eager, strict=True)]
    shown = (f"{median_interval(values).value * 1e6:.0f} µs" for values in (seconds, eager))
    return interval_result(
        f"{NAME}: {place.mode} / {PLAIN[0]}, {place.phase}, batch {place.bucket}",
        BOUND,
        median_interval(ratios),
        least=1 - APART,
        most=1 + APART,
        note=" against ".join(shown),
        numbers={"kernel_seconds": seconds, "eager_kernel_seconds": eager},
    )


PLAIN_KERNELS = Check(measure_plain, judge_plain, ((NAME, BOUND),))
