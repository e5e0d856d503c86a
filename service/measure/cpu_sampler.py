"""Samples a thread by a timer signal and says what it was doing; counts the instructions of what it runs.

The signal needs no privilege, and no system call that a container's default profile refuses. It is one method
for x86-64 and aarch64 (docs/method.md).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from time import perf_counter_ns, thread_time_ns
from typing import NamedTuple

import numpy as np

from service.measure.compiled_library import BuildError, compiled_library
from service.measure.rounds import collector_off
from service.measure.symbols import Namer, side_of
from service.records import SIDES, Phase, SampleCounts, Side
from service.step.buffers import LEAD_SECONDS, TIMED_STEPS, lead_steps

SAMPLES_PER_SECOND = 997
"""Where a measurement asks for samples. A prime; faster slows the host more than kernels."""

CAPACITY = 1 << 17
"""Samples that the ring holds: two minutes at SAMPLES_PER_SECOND."""

SYSTEM = "[kernel]"
"""Binary and symbol of what the operating system ran."""

IN_STEP = 1
"""The label of a block that has no other."""

MOST_ADDRESSES = 200_000
"""Remembered at a time: more than the code has that steps run, but for code that is written at run time."""

_SOURCE = Path(__file__).with_suffix(".cpp")
_loaded: list[ctypes.PyDLL] = []
_SAMPLE = np.dtype([("address", "<u8"), ("label", "<i8")])


class SamplerError(RuntimeError):
    """This thread cannot be sampled or counted; the message has the reason and, if any, the remedy."""


class Place(NamedTuple):
    """The function at an address, its binary and its class."""

    side: Side
    symbol: str
    binary: str


class Places:
    """What lies at an address of this process: found when it is first asked, and remembered."""

    def __init__(self) -> None:
        self._known: dict[int, Place] = {}
        self._namer: Namer | None = None

    def of(self, addresses: Sequence[int]) -> list[Place]:
        new = [address for address in dict.fromkeys(addresses) if address not in self._known]
        if len(self._known) + len(new) > MOST_ADDRESSES:
            self._known.clear()
            new = list(dict.fromkeys(addresses))
        if new and (self._namer is None or not all(map(self._namer.knows, new))):
            self._namer = Namer()  # a library was loaded, or code written, since the last one
        for address in new:
            self._known[address] = self._place(address)
        found = [self._known[address] for address in addresses]
        for stranger in (one for one in new if self._namer is not None and not self._namer.knows(one)):
            del self._known[stranger]  # gone already: something else may come to lie there
        return found

    def _place(self, address: int) -> Place:
        assert self._namer is not None
        symbol, binary = (SYSTEM, SYSTEM) if address == 0 else self._namer.name(address)
        return Place(side_of(symbol, binary), symbol, binary)


class CpuSampler:
    """Samples the thread that made it, while it is started and the label is not 0.

    `label` is a cell that the thread writes: each sample carries what it held. `folder` keeps the library
    that handles the signal, which a C++ compiler builds once. Raises SamplerError where there can be none.
    """

    def __init__(self, folder: Path) -> None:
        library = _library(folder)
        own = library.sampler_new(ctypes.c_uint64(CAPACITY), ctypes.c_uint64(perf_counter_ns()))
        if not own:
            raise SamplerError(_refused(ctypes.get_errno()))
        self._library, self._own = library, ctypes.c_void_p(own)
        self.label = ctypes.c_int64.from_address(library.sampler_label(self._own))
        self._count = ctypes.c_uint64.from_address(library.sampler_count(self._own))
        self._room = np.zeros(CAPACITY, _SAMPLE)
        self._places = Places()
        self.lost = False

    def start(self, samples_per_second: float = SAMPLES_PER_SECOND) -> None:
        """Sample from now on, so often on average, at random distances of 0.5 to 1.5 of the mean."""
        self._library.sampler_start(self._own, ctypes.c_int64(round(1e9 / samples_per_second)))

    def stop(self) -> None:
        self._library.sampler_stop(self._own)

    @property
    def count(self) -> int:
        """Samples since this was made."""
        return self._count.value

    def take(self) -> list[tuple[int, Place]]:
        """Label and place of each sample since this was last called, in order.

        `lost`: some found no room since, as the thread was sampled for longer than CAPACITY allows.
        """
        count = self._library.sampler_take(
            self._own, ctypes.c_void_p(self._room.ctypes.data), ctypes.c_uint64(CAPACITY)
        )
        self.lost = bool(self._library.sampler_lost(self._own))
        taken = self._room[:count]
        return list(zip(taken["label"].tolist(), self._places.of(taken["address"].tolist()), strict=True))

    @contextmanager
    def recording(self, samples_per_second: float = SAMPLES_PER_SECOND) -> Iterator[list[Place]]:
        """Within: all that this thread does is sampled; the list has the samples once the block has ended.

        Raises SamplerError where samples were lost.
        """
        found: list[Place] = []
        self.label.value = IN_STEP
        self.start(samples_per_second)
        try:
            yield found
        finally:
            self.label.value = 0
            self.stop()
            found += [place for _, place in self.take()]
        if self.lost:
            raise SamplerError("samples were lost: sample for a shorter time")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within, inside of `recording`: nothing is sampled."""
        before, self.label.value = self.label.value, 0
        try:
            yield
        finally:
            self.label.value = before

    def close(self) -> None:
        """Free the timer and its memory."""
        self._library.sampler_free(self._own)


def counts_of(places: Sequence[Place]) -> SampleCounts:
    found = Counter(place.side for place in places)
    return SampleCounts(**{side: found[side] for side in SIDES})


class SampledSteps(NamedTuple):
    """Steps in a row: `counts` of their samples, and the median step, timed without sampling.

    `sampled_seconds` is the mean of the `sampled` ones, in CPU time, which are longer for it.
    """

    counts: SampleCounts
    step_seconds: float
    sampled_seconds: float = 0.0
    sampled: int = 0

    @property
    def kernel_share(self) -> float:
        return self.counts.kernel / (self.counts.kernel + self.counts.host)

    @property
    def kernel_seconds(self) -> float:
        return self.kernel_share * self.step_seconds


def sample_steps(
    sampler: CpuSampler,
    run: Callable[[], object],
    phase: Phase,
    timed_seconds: float,
    sampled_seconds: float,
    beside: Callable[[], object] | None = None,
    samples_per_second: float = SAMPLES_PER_SECOND,
) -> SampledSteps | None:
    """`run` until settled, for `timed_seconds`, then, sampled, for `sampled_seconds`.

    Settling takes steps, not time: at least `lead_steps`, and at least TIMED_STEPS (of prefill one) are
    timed, however slow the machine. Steps are timed apart because every sample is an interrupt,
    and in CPU time, which stands still while another thread has the core. `beside` runs after each of them,
    neither timed nor sampled. None: there was no sample of kernel or host, or some were lost.
    """
    _seconds_of(run, LEAD_SECONDS, beside, lead_steps(phase))
    timed = _seconds_of(run, timed_seconds, beside, 1 if phase == "prefill" else TIMED_STEPS)
    paused = None if beside is None else _paused(sampler, beside)
    try:
        with sampler.recording(samples_per_second) as places:
            slowed = _seconds_of(run, sampled_seconds, paused)
    except SamplerError:
        return None
    counts = counts_of(places)
    if not counts.kernel + counts.host:
        return None
    return SampledSteps(counts, median(timed), fmean(slowed), len(slowed))


def _seconds_of(
    run: Callable[[], object], seconds: float, beside: Callable[[], object] | None, least: int = 1
) -> list[float]:
    """CPU seconds of each of the steps in a row that together take `seconds`, at least `least` of them."""
    found: list[float] = []
    total = 0.0
    while len(found) < least or total < seconds:
        began = thread_time_ns()
        run()
        found.append((thread_time_ns() - began) / 1e9)
        total += found[-1]
        if beside is not None:
            beside()
    return found


def _paused(sampler: CpuSampler, beside: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with sampler.paused():
            beside()

    return run


def _library(folder: Path) -> ctypes.PyDLL:
    """The one of this process, from the first folder: two would each take the signal for somebody else's."""
    if not _loaded:
        try:
            path = compiled_library(folder, "cpu_sampler", _SOURCE.read_text())
            library = ctypes.PyDLL(str(path), use_errno=True)
        except (BuildError, OSError) as error:
            raise SamplerError(f"the sampler could not be built: {error}") from error
        for name in ("sampler_new", "sampler_label", "sampler_count"):
            getattr(library, name).restype = ctypes.c_void_p
        library.sampler_take.restype = library.sampler_lost.restype = ctypes.c_uint64
        _loaded.append(library)
    return _loaded[0]


def _refused(code: int) -> str:
    if code == errno.EBUSY:
        return "another library in this process handles the signal SIGRTMAX-3"
    if code == errno.EAGAIN:
        return "the system allows this user no more pending signals: raise `ulimit -i`"
    return f"the system gives this thread no timer: {os.strerror(code)}"


# Code of the calling thread, run one instruction at a time, each counted: exact, whatever the clock does.
# Samples say how much time a function takes, which neighbours, caches and interrupts change; a count of
# instructions they do not. Each becomes a trap and a signal, on a virtual machine an exit as well: some
# 15 µs there, so what is counted runs tens of thousands of times slower.

CALLS_BEFORE = 20
"""The interpreter specialises code that has run so often, and caches fill."""

_MOST_ADDRESSES = 3 << 18


class Instructions(Counter[Place]):
    """How many instructions ran in each function."""

    def of(self, side: Side) -> int:
        return sum(count for function, count in self.items() if function.side == side)


class InstructionCounter:
    """Counts what the calling thread executes outside the operating system. What it starts in other threads
    is not counted. Its library is built in `folder` at first use. Raises SamplerError where that is
    impossible: without Linux on x86_64, without a C++ compiler, and where the system ignores the trap flag.
    """

    def __init__(self, folder: Path) -> None:
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise SamplerError("instructions are counted on Linux and x86_64 only")
        try:
            source = _SOURCE.with_name("single_step.cpp").read_text()
            library = compiled_library(folder, "single-step", source)
        except BuildError as error:
            raise SamplerError(str(error)) from None
        self._library = ctypes.PyDLL(str(library))
        self._library.read_counts.restype = ctypes.c_int64
        self._around = self._counted(lambda: None)
        if not self._around:
            raise SamplerError("this system does not stop after every instruction, as some sandboxes")

    def count(self, run: Callable[[], object]) -> Instructions:
        """The instructions of one call of `run`, without those of calling it; no garbage is collected in it.

        Raises SamplerError where it runs code at more addresses than can be kept.
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
            raise SamplerError(f"the code has more than {_MOST_ADDRESSES} instructions: count less of it")
        return addresses[:seen], counts[:seen]
