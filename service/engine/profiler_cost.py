"""What the profiler's first session costs all that runs after it: dispatch before and after."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from random import Random
from statistics import median
from time import perf_counter_ns

import torch

from service.engine.configured_mode import ConfiguredMode
from service.protocol.device_times import ProfilerCost
from service.statistics.intervals import unpaired_ratio
from service.step.buffers import Buffers
from service.step.callables import Step
from service.step.measured_inputs import measured_arguments, set_positions
from service.step.untimed import LEAD_STEPS_OF_DISPATCH

ROUNDS = 8
CALLS = 9
"""Per mode and round; their median is one value."""

UNKNOWN = "what the profiler costs is unknown: a request was profiled before all modes had been measured"
REMEDY = "TEARDOWN_CUPTI=1 in the service's environment lets go of it after each session (CUDA 12.6 or newer)"

Rounds = dict[str, list[float]]


class ProfilerAttachment:
    """Attaches the profiler once every mode has been measured without it.

    On CUDA the profiler's library stays attached to the process after its first session, and every launch
    call may pass through it from then on (pytorch #146604). `costs` has the ratio by mode.
    """

    def __init__(self, buffers: Mapping[int, Buffers], measure: Callable[[Step, Buffers], float]) -> None:
        self._buffers = buffers[min(buffers)]
        self._measure = measure
        self.costs: dict[str, ProfilerCost] = {}
        self.note: str | None = None

    def attach(
        self, modes: Mapping[str, ConfiguredMode], warm: Callable[[], None], attached: Callable[[], bool]
    ) -> Iterator[None]:
        """Measure, `warm` the profiler, measure again; yields where other work does no harm.

        `attached` says whether something else has used the profiler already.
        """
        steps = {
            name: configured.steps["decode", self._buffers.bucket]
            for name, configured in modes.items()
            if configured.steps
        }
        before = yield from self._rounds(steps)
        if attached():
            self.note = UNKNOWN
            warm()
            return
        warm()
        after = yield from self._rounds(steps)
        self.costs = {name: _cost(before[name], after[name]) for name in steps}
        self.note = _note(self.costs)

    def _rounds(self, steps: Mapping[str, Step]) -> Generator[None, None, Rounds]:
        found: Rounds = {name: [] for name in steps}
        for number in range(ROUNDS):
            names = list(steps)
            Random(number).shuffle(names)
            for name in names:
                found[name].append(self._measure(steps[name], self._buffers))
                yield
        return found


def decode_dispatch(step: Step, buffers: Buffers) -> float:
    """Host seconds of one warmed decode step, issued to an idle device: the median of CALLS."""
    set_positions(buffers, "decode")
    arguments = measured_arguments(buffers, "decode")
    found: list[float] = []
    for _ in range(LEAD_STEPS_OF_DISPATCH + CALLS):
        if arguments[0].is_cuda:
            torch.cuda.synchronize()
        began = perf_counter_ns()
        step(*arguments)
        found.append((perf_counter_ns() - began) / 1e9)
    return median(found[LEAD_STEPS_OF_DISPATCH:])


def _cost(before: list[float], after: list[float]) -> ProfilerCost:
    ratio = unpaired_ratio(after, before)
    return ProfilerCost(
        ratio=ratio.value,
        low=ratio.low,
        high=ratio.high,
        rounds=ratio.samples,
        before_seconds=median(before),
        after_seconds=median(after),
    )


def _note(costs: Mapping[str, ProfilerCost]) -> str | None:
    slowed = [
        f"{name} {cost.ratio:.2f} (95 % interval {cost.low:.2f} to {cost.high:.2f})"
        for name, cost in costs.items()
        if cost.matters
    ]
    if not slowed:
        return None
    return (
        "since the profiler's first session a decode step takes this many times as long to issue: "
        f"{', '.join(slowed)}. {REMEDY}"
    )
