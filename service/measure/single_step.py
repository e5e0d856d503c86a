"""Runs code of the calling thread one instruction at a time, and counts each: exact, whatever the clock does.

Samples say how much time a function takes, which neighbours, caches and interrupts change; a count of
instructions they do not. Each instruction becomes a trap and a signal, on a virtual machine an exit as well:
some 15 µs there, so what is counted runs tens of thousands of times slower.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from service.measure.compiled_library import BuildError, compiled_library
from service.measure.cpu_sampler import Place, Places
from service.measure.rounds import collector_off
from service.records import Side

CALLS_BEFORE = 20
"""The interpreter specialises code that has run so often, and caches fill."""

_MOST_ADDRESSES = 3 << 18

_SOURCE = Path(__file__).with_suffix(".cpp")


class SingleStepError(RuntimeError):
    """Instructions cannot be counted here; the message has the reason and, where there is one, the remedy."""


class Instructions(Counter[Place]):
    """How many instructions ran in each function."""

    def of(self, side: Side) -> int:
        return sum(count for function, count in self.items() if function.side == side)


class InstructionCounter:
    """Counts what the calling thread executes outside the operating system. What it starts in other threads
    is not counted. Its library is built in `folder` at first use. Raises SingleStepError where that is
    impossible: without Linux on x86_64, without a C++ compiler, and where the system ignores the trap flag.
    """

    def __init__(self, folder: Path) -> None:
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise SingleStepError("instructions are counted on Linux and x86_64 only")
        try:
            library = compiled_library(folder, "single-step", _SOURCE.read_text())
        except BuildError as error:
            raise SingleStepError(str(error)) from None
        self._library = ctypes.PyDLL(str(library))
        self._library.read_counts.restype = ctypes.c_int64
        self._around = self._counted(_nothing)
        if not self._around:
            raise SingleStepError("this system does not stop after every instruction, as some sandboxes")

    def count(self, run: Callable[[], object]) -> Instructions:
        """The instructions of one call of `run`, without those of calling it; no garbage is collected in it.

        Raises SingleStepError where it runs code at more addresses than can be kept.
        """
        found = self._counted(run)
        found.subtract(self._around)
        return Instructions(+found)

    def count_settled(self, run: Callable[[], object]) -> Instructions:
        for _ in range(CALLS_BEFORE):
            run()
        return self.count(run)

    def _counted(self, run: Callable[[], object]) -> Counter[Place]:
        with collector_off():
            addresses, counts = self._stepped(run)
        places = Places()
        found: Counter[Place] = Counter()
        for address, count in zip(addresses.tolist(), counts.tolist(), strict=True):
            found[places.of([address])[0]] += count
        return found

    def _stepped(self, run: Callable[[], object]) -> tuple[np.ndarray, np.ndarray]:
        """Addresses of instructions, uint64 [n], and how often each was executed, uint64 [n]."""
        library = self._library
        library.begin_counting()
        try:
            run()
        finally:
            library.end_counting()
        addresses, counts = np.zeros((2, _MOST_ADDRESSES), np.uint64)
        seen = library.read_counts(
            addresses.ctypes.data_as(ctypes.c_void_p), counts.ctypes.data_as(ctypes.c_void_p)
        )
        if seen < 0:
            raise SingleStepError(f"the code has more than {_MOST_ADDRESSES} instructions: count less of it")
        return addresses[:seen], counts[:seen]


def _nothing() -> None:
    return None
