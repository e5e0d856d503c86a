"""Samples of a thread that fell into its steps, by side: of any steps whose instants are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from service.step.native.elf_symbols import Namer
from service.step.native.perf_events import Samples
from service.step.native.stacks import classed

MOST_ADDRESSES = 200_000
"""Remembered at a time: more than the code has that steps run, but for code that is written at run time."""

_SYSTEM, _KERNEL, _HOST, _UNNAMED = range(4)
_SIDES = {"system": _SYSTEM, "kernel": _KERNEL, "host": _HOST}


class StepSamples(NamedTuple):
    """How many samples fell into steps. `unnamed` of those of `host` are `Sample.unnamed`."""

    kernel: int
    host: int
    unnamed: int


class AddressSides:
    """The side of each address; named when it is first seen, and remembered."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._namer = Namer()

    def of(self, addresses: Sequence[int]) -> np.ndarray:
        """The side of each, int8 [n]: `within` counts them."""
        new = [address for address in dict.fromkeys(addresses) if address not in self._known]
        if len(self._known) + len(new) > MOST_ADDRESSES:
            self._known.clear()
            new = list(dict.fromkeys(addresses))
        if not all(map(self._namer.knows, new)):
            self._namer = Namer()  # a library was loaded, or code written, since the last one
        self._known |= {address: self._side(address) for address in new}
        found = np.fromiter((self._known[address] for address in addresses), np.int8, len(addresses))
        for stranger in (address for address in new if not self._namer.knows(address)):
            del self._known[stranger]  # gone already: something else may come to lie there
        return found

    def _side(self, address: int) -> int:
        sample = classed(self._namer, address)
        return _UNNAMED if sample.unnamed else _SIDES[sample.side]


def within(
    begin_ns: Sequence[int], call_ns: Sequence[int], samples: Samples, sides: np.ndarray
) -> StepSamples:
    """The `samples` that fell into steps which began at `begin_ns`, in order, and took `call_ns`."""
    if not begin_ns:
        return StepSamples(0, 0, 0)
    begins = np.array(begin_ns, np.int64)
    step = np.searchsorted(begins, samples.times_ns, side="right") - 1
    inside = (step >= 0) & (samples.times_ns < (begins + np.array(call_ns, np.int64))[step])
    counts = np.bincount(sides[inside], minlength=4).tolist()
    return StepSamples(counts[_KERNEL], counts[_HOST] + counts[_UNNAMED], counts[_UNNAMED])
