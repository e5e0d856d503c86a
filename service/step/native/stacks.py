"""Samples of a thread by function, classed as kernel or host, and what they say of steps in a row."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import PurePath
from statistics import median
from time import thread_time_ns
from typing import NamedTuple

from service.protocol.messages import Phase
from service.step.native.elf_symbols import UNKNOWN, Namer
from service.step.native.perf_events import IN_SYSTEM, SAMPLES_PER_SECOND, AddressSampler, PerfError
from service.step.native.symbols import Side, side_of
from service.step.untimed import LEAD_SECONDS, LEAD_STEPS, LEAD_STEPS_OF_PREFILL, TIMED_STEPS

_LEAD: dict[Phase, int] = {"decode": LEAD_STEPS, "prefill": LEAD_STEPS_OF_PREFILL}
_TIMED: dict[Phase, int] = {"decode": TIMED_STEPS, "prefill": 1}

SYSTEM = "[kernel]"
"""Binary and symbol of what the operating system ran."""


class Sample(NamedTuple):
    """The function on top of the stack at one instant, its binary and its class."""

    side: Side
    symbol: str
    binary: str

    @property
    def unnamed(self) -> bool:
        """Whether it counts as host for want of a name, and might be of a kernel all the same.

        Not in the C library: its copies are known by their addresses, and what else it does is no kernel.
        """
        in_c_library = PurePath(self.binary).name.startswith(("libc.", "libc-"))
        return self.side == "host" and self.symbol == UNKNOWN and not in_c_library


class Recording:
    """The samples of a block, in order; empty until it has ended."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    @property
    def of_steps(self) -> int:
        """How many of the samples are kernel or host."""
        return sum(sample.side != "system" for sample in self.samples)

    @property
    def kernel_share(self) -> float | None:
        """Kernel / (kernel + host) of the samples; None without either."""
        kernel = sum(sample.side == "kernel" for sample in self.samples)
        return kernel / self.of_steps if self.of_steps else None

    @property
    def unnamed(self) -> int:
        """How many of the samples are `Sample.unnamed`."""
        return sum(sample.unnamed for sample in self.samples)


class StackSampler:
    """Samples the thread that made it. Raises PerfError where that is impossible.

    `addresses` samples without naming what it finds.
    """

    def __init__(self, samples_per_second: int = SAMPLES_PER_SECOND) -> None:
        if platform.machine() != "x86_64":
            raise PerfError("symbols are classed for x86_64 only")
        self.addresses = AddressSampler(samples_per_second)

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Within: this thread is sampled. Raises PerfError where samples were lost."""
        found = Recording()
        with self.addresses.sampling() as seen:
            yield found
        namer = Namer()
        named = {address: classed(namer, address) for address in set(seen.addresses.tolist())}
        found.samples = [named[address] for address in seen.addresses.tolist()]

    def paused(self) -> AbstractContextManager[None]:
        """Within, inside of `recording`: this thread is not sampled."""
        return self.addresses.paused()

    def close(self) -> None:
        """Stop for good."""
        self.addresses.close()


class SampledSteps(NamedTuple):
    """Steps in a row: which share of `samples` is kernel, and the median step, timed without sampling.

    `samples` are those of kernel and host, `unnamed` those of host for want of a name. `sampled_seconds` are
    the CPU seconds of each step that was sampled, which is longer for it.
    """

    kernel_share: float
    samples: int
    step_seconds: float
    unnamed: int = 0
    sampled_seconds: Sequence[float] = ()

    @property
    def most_kernel_share(self) -> float:
        """With all unnamed ones taken for kernel."""
        return min(1.0, self.kernel_share + self.unnamed / self.samples)

    @property
    def kernel_seconds(self) -> float:
        """Of one step."""
        return self.kernel_share * self.step_seconds

    @property
    def dispatch_seconds(self) -> float:
        """Of one step: the rest."""
        return (1 - self.kernel_share) * self.step_seconds


def sample_steps(
    sampler: StackSampler,
    run: Callable[[], object],
    phase: Phase,
    timed_seconds: float,
    sampled_seconds: float,
    beside: Callable[[], object] | None = None,
) -> SampledSteps | None:
    """`run` until settled, for `timed_seconds`, then, sampled, for `sampled_seconds`.

    Settling takes steps, not time: at least LEAD_STEPS or LEAD_STEPS_OF_PREFILL, and at least TIMED_STEPS of
    decode are timed, however slow the machine. Steps are timed apart because every sample is an interrupt,
    and in CPU time, because samples stand still too while another thread has the core. `beside` runs after
    each of them, neither timed nor sampled. None: there was no sample of kernel or host, or a step was so
    long that some were lost.
    """
    _seconds_of(run, LEAD_SECONDS, beside, _LEAD[phase])
    timed = _seconds_of(run, timed_seconds, beside, _TIMED[phase])
    paused = None if beside is None else _paused(sampler, beside)
    try:
        with sampler.recording() as recorded:
            slowed = _seconds_of(run, sampled_seconds, paused)
    except PerfError:
        return None
    share = recorded.kernel_share
    if share is None:
        return None
    return SampledSteps(share, recorded.of_steps, median(timed), recorded.unnamed, slowed)


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


def _paused(sampler: StackSampler, beside: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with sampler.paused():
            beside()

    return run


def classed(namer: Namer, address: int) -> Sample:
    """The sample that was taken at `address`."""
    symbol, binary = (SYSTEM, SYSTEM) if address == IN_SYSTEM else namer.name(address)
    return Sample(side_of(symbol, binary), symbol, binary)
