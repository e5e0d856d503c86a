"""The timed arms of the layer table: what each runs, in which state of torch, and all of them in rounds."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import repeat
from random import Random
from time import perf_counter, perf_counter_ns
from timeit import Timer
from typing import Any, TypeVar

import torch

from service.anatomy.progress import Report
from service.protocol.modes import GradMode

Key = TypeVar("Key")
Times = Callable[[int], float]
"""How often → seconds of all of it."""

LOOP_SECONDS = 3e-4
"""About what one loop lasts: long beside a clock's reading, short beside what else a machine does."""

LOOPS, SAMPLE_SECONDS = 3, 3e-3
"""Loops per sample, unless they would last longer than this."""

LONGEST_QUEUE = 64
"""Calls per loop on CUDA: more would fill the device's queue, and the host would wait in its launches."""


@dataclass(frozen=True, slots=True)
class State:
    """In which state of torch a call is made. `autocast` is on or off; its dtype is bfloat16."""

    grad: GradMode = "inference_mode"
    autocast: bool = False

    @contextmanager
    def entered(self, device: torch.device) -> Iterator[None]:
        """Within it."""
        with ExitStack() as stack:
            if self.grad == "inference_mode":
                stack.enter_context(torch.inference_mode())
            else:
                stack.enter_context(torch.set_grad_enabled(self.grad == "enabled"))
            stack.enter_context(torch.autocast(device.type, torch.bfloat16, enabled=self.autocast))
            yield


@dataclass(frozen=True, slots=True)
class Arm:
    """One thing to be timed, `times` in a row."""

    run: Times
    state: State = State()

    def seconds(self, device: torch.device, times: int) -> float:
        """Per call: of short loops the quickest of three, because what interferes only adds.

        The first call in a state is not timed: autocast casts a weight once, and keeps it.
        """
        with self.state.entered(device):
            self.run(1)
            began, quickest = perf_counter(), math.inf
            for _ in range(LOOPS):
                quickest = min(quickest, self._loop(device, times))
                if perf_counter() - began > SAMPLE_SECONDS:
                    break
            return quickest / times

    def _loop(self, device: torch.device, times: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return self.run(times)


def python_arm(statement: str, names: Mapping[str, Any], state: State | None = None) -> Arm:
    """`statement` in a loop of Python's; the loop itself is in it."""
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
    """`statement`, each time after an untimed `before`, which leaves the caches as it does.

    Reading the clock is in the seconds; with the statement "pass" there is nothing else in them.
    """
    known = {**names, "repeat": repeat, "clock": perf_counter_ns, "before": before}
    exec(_AFTER.format(statement=statement), known)
    return Arm(known["run"], state or State())


@contextmanager
def collector_off() -> Iterator[None]:
    """Within: garbage that goes in circles is not looked for."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def calls_per_loop(arm: Arm, device: torch.device) -> int:
    """How many calls of `arm` last about LOOP_SECONDS, with what is not timed of them."""
    times, spent = 1, 0.0
    while times < 2**16:
        spent = min(_wall_seconds(arm, device, times) for _ in range(2))
        if spent > LOOP_SECONDS / 2:
            break
        times *= 2
    wanted = max(1, round(times * LOOP_SECONDS / spent))
    return min(wanted, LONGEST_QUEUE) if device.type == "cuda" else wanted


def _wall_seconds(arm: Arm, device: torch.device, times: int) -> float:
    with arm.state.entered(device):
        began = perf_counter()
        arm.run(times)
        return perf_counter() - began


def time_arms(
    arms: Mapping[Key, Arm], device: torch.device, rounds: int, report: Report
) -> dict[Key, list[float]]:
    """Seconds per call of every arm, round by round; each round takes them in a fresh order."""
    found: dict[Key, list[float]] = {name: [] for name in arms}
    with collector_off():
        times = {name: calls_per_loop(arm, device) for name, arm in arms.items()}
        began = perf_counter()
        for number in range(rounds):
            report(f"round {number + 1} of {rounds}, {perf_counter() - began:.1f} s")
            names = list(arms)
            Random(number).shuffle(names)
            for name in names:
                found[name].append(arms[name].seconds(device, times[name]))
    return found
