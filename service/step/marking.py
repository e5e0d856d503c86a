"""Meters around another meter that mark each of its steps: in a profiler's trace, or as NVTX ranges.

A mark is outside of what the inner meter measures. Its name has the step's phase and shape, so that marks of
the same name are steps that are alike: `launchbound::step decode 1/64` computes 1 token per row and reads 64
positions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import record_function

from service.step.buffers import Arguments
from service.step.callables import Step
from service.step.meters import Meter, Readings
from service.step.trace import STEP_MARK

FETCH_MARK = "launchbound::fetch"


def step_name(arguments: Arguments) -> str:
    """The name of the mark of a step with these arguments."""
    tokens, _, _, cache = arguments
    length, reach = tokens.shape[1], cache[0][0].shape[1]
    phase = "decode" if length == 1 else "prefill"
    return f"{STEP_MARK} {phase} {length}/{reach}"


class ProfilingMeter:
    """Marks each step in the profiler's trace, and calls `stop`, which ends it, after `most` of them."""

    def __init__(self, inner: Meter, stop: Callable[[], None], most: int) -> None:
        self._inner = inner
        self._stop = stop
        self._left = most
        self._ended = False

    def run(self, step: Step, arguments: Arguments, readings: Readings) -> tuple[Tensor, Tensor]:
        """Call `step` once, marked."""
        if not self._left:
            self.end()
        self._left -= 1
        with record_function(step_name(arguments)):
            return self._inner.run(step, arguments, readings)

    def fetch(self, tokens: Tensor, readings: Readings) -> list[int]:
        """As the inner meter does."""
        return self._inner.fetch(tokens, readings)

    def end(self) -> None:
        """End the trace, unless it has ended."""
        if not self._ended:
            self._ended = True
            self._stop()


class NvtxMeter:
    """An NVTX range around each step and around each wait for its tokens, which Nsight Systems shows."""

    def __init__(self, inner: Meter) -> None:
        self._inner = inner

    def run(self, step: Step, arguments: Arguments, readings: Readings) -> tuple[Tensor, Tensor]:
        """Call `step` once, in a range of its phase and shape."""
        torch.cuda.nvtx.range_push(step_name(arguments))
        try:
            return self._inner.run(step, arguments, readings)
        finally:
            torch.cuda.nvtx.range_pop()

    def fetch(self, tokens: Tensor, readings: Readings) -> list[int]:
        """As the inner meter does, in a range."""
        torch.cuda.nvtx.range_push(FETCH_MARK)
        try:
            return self._inner.fetch(tokens, readings)
        finally:
            torch.cuda.nvtx.range_pop()


def with_nvtx(meter: Meter, device: torch.device) -> Meter:
    """`meter` with NVTX ranges on CUDA; else `meter` itself, and a line on standard error that says so."""
    if device.type == "cuda":
        return NvtxMeter(meter)
    print(
        "launchbound engine: LAUNCHBOUND_NVTX is set, but NVTX ranges need CUDA: none here", file=sys.stderr
    )
    return meter
