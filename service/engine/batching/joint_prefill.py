"""One prefill of all that join together, after which each has its first token."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns

from service.engine.batching.member import Member
from service.engine.batching.round import choose
from service.engine.batching.slots import Slots
from service.engine.batching.step_log import StepLog
from service.engine.prefill import Place, prefill
from service.protocol.messages import Phase
from service.step.callables import Step
from service.step.meters import Meter, Readings


class JointPrefill:
    """In the first rows of the cache, as many as the smallest bucket has that holds the prompts; `between` is
    called before every chunk.
    """

    def __init__(
        self,
        places: Mapping[int, Place],
        steps: Mapping[tuple[Phase, int], Step],
        meter: Meter,
        slots: Slots,
        between: Callable[[], None],
    ) -> None:
        self._places = places
        self._steps = steps
        self._meter = meter
        self._slots = slots
        self._between = between

    def run(self, entered: Sequence[Member]) -> tuple[list[int], int]:
        """The first tokens by row, and when they were there."""
        prompts = [prompt for member in entered for prompt in member.prompts]
        bucket = self._slots.bucket(len(prompts))
        self._slots.clear(bucket)
        readings = Readings()
        step, place = self._steps["prefill", bucket], self._places[bucket]
        found = prefill(prompts, place, step, self._meter, readings, self._between)
        log = StepLog(readings)
        for _ in range(readings.steps):
            log.add(bucket, len(prompts))
        first = 0
        for member in entered:
            member.slots = list(range(first, first := first + len(member.prompts)))
            self._slots.take(member.slots, map(len, member.prompts))
            member.prefilled = log
            member.result.padded_prompt_tokens = found.padded
        tokens = choose(entered, found.logits, found.greedy, readings)
        values = self._meter.fetch(tokens, readings)
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        now_ns = perf_counter_ns()
        for member in entered:
            self._slots.feed(member.slots, values)
            member.result.prefill.minor_faults = faults - member.usage.ru_minflt
            member.result.first_token_ns = now_ns
        return values, now_ns
