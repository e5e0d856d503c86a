"""What decode steps and prefills take, by mode and bucket: measured in turns, as only their ratios are used.

Taken from the steps that run for requests they would be of different moments, on a machine that may be half
as fast as it was; and between two merged requests one row's steps are the few after a change of bucket, when
its weights are not in the caches any more.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from statistics import median
from time import perf_counter_ns

from service.engine.prefill import Place, prefill
from service.protocol.messages import Phase
from service.step.callables import Step
from service.step.meters import Meter, Readings

ROUNDS = 21
LEAST_ROUNDS = 5
ENOUGH_SECONDS = 3.0
"""Of one mode; a large model takes the least number of rounds."""

STEPS_EACH = 32
"""Decode steps behind a prefill, as of a short request: a prefill empties the caches, which takes a small
bucket ten steps to make up for on a CPU, and a large one none."""

Key = tuple[str, Phase, int]
"""Mode, phase and bucket."""

Steps = Mapping[tuple[Phase, int], Step]


class StepCosts:
    """In nanoseconds; those of a mode that has not been measured are not known."""

    def __init__(self, known: Mapping[Key, int] | None = None) -> None:
        self._known = dict(known or {})

    def of(self, mode: str, phase: Phase, bucket: int) -> int | None:
        """None: not known."""
        return self._known.get((mode, phase, bucket))

    def measure(
        self, mode: str, steps: Steps, places: Mapping[int, Place], meter: Meter
    ) -> Generator[None, None, None]:
        """Run all buckets of `mode` in turn; yields between turns, so that requests are served meanwhile.

        A prefill is of the middle one of its lengths, decode steps are the ones behind it, on average.
        """
        ends = perf_counter_ns() + ENOUGH_SECONDS * 1e9
        rounds: list[dict[Key, float]] = []
        while len(rounds) < ROUNDS and (len(rounds) < LEAST_ROUNDS or perf_counter_ns() <= ends):
            taken: dict[Key, float] = {}
            for bucket, place in places.items():
                turn = _turn(bucket, place, steps, meter)
                taken[mode, "prefill", bucket], taken[mode, "decode", bucket] = turn
                yield
            rounds.append(taken)
            self._know(rounds)

    def _know(self, rounds: Sequence[Mapping[Key, float]]) -> None:
        """Of the keys of `rounds`, all of one mode."""
        sums = [sum(one.values()) for one in rounds]
        usual = median(sums)
        for key in rounds[0]:
            shares = [one[key] / whole for one, whole in zip(rounds, sums, strict=True)]
            self._known[key] = round(usual * median(shares))


def _turn(bucket: int, place: Place, steps: Steps, meter: Meter) -> tuple[float, float]:
    """Nanoseconds of one prefill, and the mean of the decode steps behind it."""
    lengths = list(place.buffers.chunks)
    length = lengths[len(lengths) // 2]
    began = perf_counter_ns()
    readings = Readings()
    prompts = [[0] * length] * bucket
    found = prefill(prompts, place, steps["prefill", bucket], meter, readings, between=lambda: None)
    meter.fetch(found.greedy, readings)
    prefilled = perf_counter_ns()
    positions = range(length, min(length + STEPS_EACH, max(place.buffers.caches)))
    arguments = place.buffers.arguments("decode", reach=place.buffers.reach(positions.stop))
    for position in positions:
        place.feed.put_rows([0] * bucket, [position] * bucket, readings)
        _, greedy = meter.run(steps["decode", bucket], arguments, readings)
        meter.fetch(greedy, readings)
    return prefilled - began, (perf_counter_ns() - prefilled) / len(positions)
