"""What decode steps and prefills take, by mode and bucket: measured in turns, as only their ratios are used.

Taken from the steps that run for requests they would be of different moments: a bucket that has not run for a
while would be held against steps of a machine that has become slower meanwhile, and one row's steps between
two merged requests are those just before and after a change of bucket, which are the slowest.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from itertools import pairwise
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

STEPS_EACH = 4
"""Decode steps of a turn, the first of which follows a prefill, as the first of a request does."""

Key = tuple[str, Phase, int]
"""Mode, phase and bucket."""


class StepCosts:
    """In nanoseconds; those of a mode that has not been measured are not known."""

    def __init__(self, known: Mapping[Key, int] | None = None) -> None:
        self._known = dict(known or {})

    def of(self, mode: str, phase: Phase, bucket: int) -> int | None:
        """None: not known."""
        return self._known.get((mode, phase, bucket))

    def measure(
        self,
        mode: str,
        steps: Mapping[tuple[Phase, int], Step],
        places: Mapping[int, Place],
        meter: Meter,
    ) -> Generator[None, None, None]:
        """Run all buckets of `mode` in turn; yields between rounds, so that requests are served meanwhile.

        A prefill is of the middle one of its lengths, a decode step at the positions behind it.
        """
        rounds = list[dict[Key, float]]()
        ends = perf_counter_ns() + ENOUGH_SECONDS * 1e9
        while len(rounds) < LEAST_ROUNDS or (len(rounds) < ROUNDS and perf_counter_ns() < ends):
            taken: dict[Key, float] = {}
            for bucket, place in places.items():
                prefilling, decoding = _turn(bucket, place, steps, meter)
                taken[mode, "prefill", bucket] = prefilling
                taken[mode, "decode", bucket] = decoding
            rounds.append(taken)
            yield
        sums = [sum(taken.values()) for taken in rounds]
        usual = median(sums)
        for key in rounds[0]:
            shares = [taken[key] / whole for taken, whole in zip(rounds, sums, strict=True)]
            self._known[key] = round(usual * median(shares))


def _turn(
    bucket: int, place: Place, steps: Mapping[tuple[Phase, int], Step], meter: Meter
) -> tuple[float, float]:
    """Nanoseconds of one prefill, and the median of the decode steps behind it."""
    lengths = list(place.buffers.chunks)
    length = lengths[len(lengths) // 2]
    began = perf_counter_ns()
    readings = Readings()
    found = prefill(
        [[0] * length] * bucket, place, steps["prefill", bucket], meter, readings, between=lambda: None
    )
    meter.fetch(found.greedy, readings)
    ends = [perf_counter_ns()]
    prefilling = ends[0] - began
    arguments = place.buffers.arguments("decode", reach=place.buffers.reach(length + STEPS_EACH))
    for position in range(length, length + STEPS_EACH):
        place.feed.put_rows([0] * bucket, [position] * bucket, readings)
        _, greedy = meter.run(steps["decode", bucket], arguments, readings)
        meter.fetch(greedy, readings)
        ends.append(perf_counter_ns())
    return prefilling, median(later - earlier for earlier, later in pairwise(ends))
