"""Samples of a thread by function, classed as kernel or host, and the kernel share of what it ran."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from service.step.native.elf_symbols import Namer
from service.step.native.perf_events import IN_SYSTEM, AddressSampler, PerfError
from service.step.native.symbols import Side, side_of

SYSTEM = "[kernel]"
"""Binary and symbol of what the operating system ran."""


class Sample(NamedTuple):
    """The function on top of the stack at one instant, its binary and its class."""

    side: Side
    symbol: str
    binary: str


class Recording:
    """The samples of a block, in order; empty until it has ended."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    @property
    def kernel_share(self) -> float | None:
        """Kernel / (kernel + host) of the samples; None without either."""
        counts = Counter(sample.side for sample in self.samples)
        steps = counts["kernel"] + counts["host"]
        return counts["kernel"] / steps if steps else None


class StackSampler:
    """Samples the thread that made it. Raises PerfError where that is impossible."""

    def __init__(self) -> None:
        if platform.machine() != "x86_64":
            raise PerfError("symbols are classed for x86_64 only")
        self._sampler = AddressSampler()

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Within: this thread is sampled. Raises PerfError where samples were lost."""
        found = Recording()
        with self._sampler.sampling() as addresses:
            yield found
        namer = Namer()
        named = {address: _classed(namer, address) for address in set(addresses)}
        found.samples = [named[address] for address in addresses]

    def close(self) -> None:
        """Stop for good."""
        self._sampler.close()


def _classed(namer: Namer, address: int) -> Sample:
    symbol, binary = (SYSTEM, SYSTEM) if address == IN_SYSTEM else namer.name(address)
    return Sample(side_of(symbol, binary), symbol, binary)
