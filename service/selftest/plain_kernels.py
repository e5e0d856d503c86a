"""Check of what is booked as kernel: modes that run the same kernels must show the same kernel time.

Eager, no_grad and inference_mode differ in what the host does around each operator, and in the memory that a
tape holds on to. Where such a price is booked as kernel, their kernel times differ.

They also differ where nothing is booked wrongly: the longer a step, the longer the machine's other users had
the shared caches when the next one begins, and the longer its kernels take. So after each step of a mode
that is faster than eager the thread is busy for the time that it was faster by, neither timed nor sampled:
all modes begin equally many steps per second (decision 56).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from time import perf_counter
from typing import Literal

from models.served import NoTwin
from service.measure.cases import Bench, Case
from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.protocol.messages import Phase
from service.selftest.check import Check, NotMeasurableError
from service.selftest.places import PHASES, Place, floors_of
from service.selftest.results import CheckResult, interval_result
from service.selftest.sampled_dispatch import FIRST_SECONDS, sampled, seconds_for, stack_sampler
from service.statistics.intervals import median_interval
from service.step.native.stacks import StackSampler

ROUNDS = 24
KERNEL_SAMPLES = 240
"""Wanted per place and round: its kernel time is then known within 6 %, the median of the rounds' ratios
within 4 at 95 %. The smaller the kernels' share, the longer it is sampled."""

STEPS = 3
PLAIN = ("eager", "no_grad", "inference_mode")
NAME = "kernel time equal in the plain modes"
BOUND = "within 10 %"
APART = 0.10
NO_RATIO = 1e3
"""In place of the ratio of a round in which a mode shows no kernel time at all: far outside."""

Source = Literal["stacks", "floors"]
Rest = Callable[[], object] | None

Found = dict[tuple[Place, Source], list[float]]
"""Kernel seconds of a step per round, and by which witness."""


def measure_plain(variants: Variants, log: Log) -> Found:
    """Kernel seconds per mode, phase and bucket: by sampled stacks, and by floors where those are forbidden.

    Raises NotMeasurableError on CUDA, and where there are neither stacks nor a twin.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA kernels are timed by the device")
    modes = [mode for mode in PLAIN if mode in variants.modes]
    if PLAIN[0] not in modes or len(modes) < 2:
        raise NotMeasurableError(f"it compares with {PLAIN[0]}, and at least two of its modes must be served")
    bench = variants.served_bench
    with variants.isolated():
        try:
            with stack_sampler() as sampler:
                return by_stacks(bench, modes, sampler, log)
        except NotMeasurableError as reason:
            log(f"by floors, because {reason}")
        try:
            return by_floors(bench, modes, log)
        except NoTwin as error:
            raise NotMeasurableError(str(error)) from error


def _cases(bench: Bench, modes: Sequence[str]) -> dict[Place, Case]:
    return {
        Place(mode, phase, bucket): bench.case(mode, bucket, phase)
        for mode in modes
        for phase in PHASES
        for bucket in bench.settings.batch_sizes
    }


def by_stacks(bench: Bench, modes: Sequence[str], sampler: StackSampler, log: Log) -> Found:
    """The share of samples in kernels times the step, which is timed without sampling.

    The modes of a phase and bucket follow right after each other, because what neighbours leave of the caches
    changes within seconds.
    """
    together: dict[tuple[Phase, int], dict[Place, Case]] = defaultdict(dict)
    for place, case in _cases(bench, modes).items():
        together[place.phase, place.bucket][place] = case
    order = Random("plain-kernels")
    log("how long to sample")
    seconds = {
        place: seconds_for(
            KERNEL_SAMPLES, sampled(sampler, case, FIRST_SECONDS, _rest(cases, place)).kernel_share
        )
        for cases in together.values()
        for place, case in cases.items()
    }

    def visit(cases: Mapping[Place, Case]) -> dict[Place, float]:
        turns = list(cases)
        order.shuffle(turns)
        return {
            place: sampled(sampler, cases[place], seconds[place], _rest(cases, place)).kernel_seconds
            for place in turns
        }

    arms = {key: partial(visit, cases) for key, cases in together.items()}
    found = in_rounds(arms, ROUNDS, "plain-kernels", log)
    return {
        (place, "stacks"): [kernels[place] for kernels in found[key]]
        for key, cases in together.items()
        for place in cases
    }


def _rest(cases: Mapping[Place, Case], place: Place) -> Rest:
    """What follows each step of `place`: as much time as eager's takes longer, at this moment."""
    case, eager = cases[place], cases[place._replace(mode=PLAIN[0])]
    if case is eager:
        return None
    return partial(busy_for, eager.steady_seconds(STEPS) - case.steady_seconds(STEPS))


def busy_for(seconds: float) -> None:
    """Keep the core, and touch no memory, for `seconds`; not at all where they are negative."""
    until = perf_counter() + seconds
    while perf_counter() < until:
        continue


def by_floors(bench: Bench, modes: Sequence[str], log: Log) -> Found:
    """Wall less floor. Raises NoTwin."""
    cases = _cases(bench, modes)

    def wall(place: Place) -> dict[Place, float]:
        return {place: cases[place].steady_seconds(STEPS, beside=_rest(cases, place))}

    arms: dict[Place | str, Callable[[], dict[Place, float]]] = {
        **{place: partial(wall, place) for place in cases},
        **{mode: partial(floors_of, bench, mode) for mode in modes},
    }
    found = in_rounds(arms, ROUNDS, "plain-kernels", log)
    return {
        (place, "floors"): [
            walls[place] - floors[place]
            for walls, floors in zip(found[place], found[place.mode], strict=True)
        ]
        for place in cases
    }


def judge_plain(found: Mapping[tuple[Place, Source], list[float]]) -> list[CheckResult]:
    """Per phase and bucket, the other modes' kernel time over eager's, paired by round."""
    ordered = sorted(found, key=lambda key: (key[0].phase, key[0].bucket))
    return [
        _row(place, source, found[place, source], found[place._replace(mode=PLAIN[0]), source])
        for place, source in ordered
        if place.mode != PLAIN[0]
    ]


def _row(place: Place, source: Source, seconds: list[float], eager: list[float]) -> CheckResult:
    ratios = [a / b if a > 0 and b > 0 else NO_RATIO for a, b in zip(seconds, eager, strict=True)]
    shown = (f"{median_interval(values).value * 1e6:.0f} µs" for values in (seconds, eager))
    return interval_result(
        f"{NAME}: {place.mode} / {PLAIN[0]}, {place.phase}, batch {place.bucket}",
        BOUND,
        median_interval(ratios),
        least=1 - APART,
        most=1 + APART,
        note=f"{' against '.join(shown)}, by {source}",
        numbers={"kernel_seconds": seconds, "eager_kernel_seconds": eager},
    )


PLAIN_KERNELS = Check(measure_plain, judge_plain, ((NAME, BOUND),))
