"""The timed arms of the layer table: what each runs, in which state of torch, and their timing in rounds."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from time import perf_counter, perf_counter_ns
from timeit import Timer
from typing import Any, TypeVar

import torch

from service.anatomy.progress import Report, counted
from service.measure.rounds import in_rounds
from service.protocol.modes import GradMode

Key = TypeVar("Key")
Times = Callable[[int], float]
"""Number of calls → seconds of all of them."""

LOOP_SECONDS = 3e-4
"""Target length of one loop: long beside reading a clock, short beside the scheduler's time slices."""

LOOPS = 3
"""Loops per sample, fewer where they take more than SAMPLE_SECONDS."""

SAMPLE_SECONDS = 3e-3

LONGEST_QUEUE = 64
"""Calls per loop on CUDA: more would fill the launch queue, and launches would block."""


@dataclass(frozen=True, slots=True)
class State:
    """Grad mode and autocast (to bfloat16) of a call."""

    grad: GradMode = "inference_mode"
    autocast: bool = False

    @contextmanager
    def entered(self, device: torch.device) -> Iterator[None]:
        """A context in this state."""
        with ExitStack() as stack:
            if self.grad == "inference_mode":
                stack.enter_context(torch.inference_mode())
            else:
                stack.enter_context(torch.set_grad_enabled(self.grad == "enabled"))
            stack.enter_context(torch.autocast(device.type, torch.bfloat16, enabled=self.autocast))
            yield


@dataclass(frozen=True, slots=True)
class Arm:
    """A function that makes a number of calls in a row and returns their seconds, and its state."""

    run: Times
    state: State = State()

    def seconds(self, device: torch.device, times: int) -> float:
        """Seconds per call: the minimum over short loops, because interference only adds.

        The first call in a state is not timed: autocast caches a weight's cast.
        """
        with self.state.entered(device):
            self.run(1)
            began = perf_counter()
            quickest = math.inf
            for _ in range(LOOPS):
                quickest = min(quickest, self._loop(device, times))
                if perf_counter() - began > SAMPLE_SECONDS:
                    break
            return quickest / times

    def _loop(self, device: torch.device, times: int) -> float:
        _wait(device)
        return self.run(times)


def python_arm(statement: str, names: Mapping[str, Any], state: State | None = None) -> Arm:
    """`statement` in a Python loop, the loop's own time included."""
    return Arm(Timer(statement, globals=dict(names)).timeit, state or State())


_AFTER = """
def run(times):
    spent = 0
    for _ in repeat(None, times):
        before()
        began = clock()
        {statement}
        spent += clock() - began
    return spent / 1e9
"""


def python_arm_after(
    before: Callable[[], object], statement: str, names: Mapping[str, Any], state: State | None = None
) -> Arm:
    """`statement`, each time after an untimed call of `before`, which sets the state of the caches.

    The seconds include reading the clock, which the statement "pass" measures alone.
    """
    known = {**names, "repeat": repeat, "clock": perf_counter_ns, "before": before}
    exec(_AFTER.format(statement=statement), known)
    return Arm(known["run"], state or State())


@contextmanager
def collector_off() -> Iterator[None]:
    """A context without cyclic garbage collection."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def calls_per_loop(arm: Arm, device: torch.device) -> int:
    """Number of calls of `arm` that take about LOOP_SECONDS, their untimed parts included."""
    times = 1
    spent = 0.0
    while times < 2**16:
        spent = min(_wall_seconds(arm, device, times) for _ in range(2))
        if spent > LOOP_SECONDS / 2:
            break
        times *= 2
    count = max(1, round(times * LOOP_SECONDS / spent))
    return min(count, LONGEST_QUEUE) if device.type == "cuda" else count


def _wall_seconds(arm: Arm, device: torch.device, times: int) -> float:
    with arm.state.entered(device):
        _wait(device)
        began = perf_counter()
        arm.run(times)
        return perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def time_arms(
    arms: Mapping[Key, Arm], device: torch.device, rounds: int, report: Report
) -> dict[Key, list[float]]:
    """Seconds per call of every arm, round by round, with garbage collection off."""
    with collector_off():
        times = {key: calls_per_loop(arm, device) for key, arm in arms.items()}
        seconds = {key: partial(arm.seconds, device, times[key]) for key, arm in arms.items()}
        return in_rounds(seconds, rounds, "layers", counted(report, rounds))
