"""What the machine does to a round: time stolen by its hypervisor, and how fast memory is read (the canary).

Imports no torch: it runs in the load generator, on the load generator's core.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from loadtests.run.run_file import RoundMachine

MOST_STEAL = 0.02
"""A round in which the hypervisor gave more of the machine's time to others is marked."""

CANARY_FACTOR = 1.3
"""A round whose canary is so many times off the median of all rounds, up or down, is marked."""

CANARY_SECONDS = 0.05
"""The canary reads its buffer over and over for so long: at least once, and then no further."""

CANARY_BYTES_MOST = 256 * 2**20
"""No larger a buffer is read: it is beyond every cache, and a read of it fits the time."""

_BYTES_OF_DTYPE = {"float32": 4, "autocast-bfloat16": 4, "bfloat16": 2, "float16": 2}
"""Per weight. Under autocast the weights stay float32."""

STAT_FILE = Path("/proc/stat")


def weights_bytes(engine: dict[str, object]) -> int:
    """Size of the served model's weights, from the engine's status; 0 where it does not say."""
    parameters, dtype = engine.get("parameters"), engine.get("dtype")
    return parameters * _BYTES_OF_DTYPE.get(str(dtype), 0) if isinstance(parameters, int) else 0


class Canary:
    """Reads a buffer as large as the model's weights, as a step does.

    It slows down when neighbours on the same processor take the shared cache or the memory's bandwidth, which
    no counter of this machine shows.
    """

    def __init__(self, size_bytes: int) -> None:
        # Ones, because untouched pages of zeros are all the same page of memory.
        self._buffer = np.ones(min(size_bytes, CANARY_BYTES_MOST) // 8, dtype=np.int64)

    def bytes_per_second(self) -> float | None:
        """The median rate over CANARY_SECONDS of reading; None without a buffer."""
        if not self._buffer.size:
            return None
        rates = list[float]()
        began = ended = perf_counter()
        while ended - began < CANARY_SECONDS:
            self._buffer.sum()
            now = perf_counter()
            rates.append(self._buffer.nbytes / (now - ended))
            ended = now
        return median(rates)


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """The machine's processor time since it started, all of it and what was stolen, in clock ticks."""

    total: int
    steal: int


def cpu_times(path: Path = STAT_FILE) -> CpuTimes | None:
    """From the first line of /proc/stat; None where there is none (another system) or it has no steal time.

    Its columns are user, nice, system, idle, iowait, irq, softirq, steal, and guest times that user has too.
    """
    try:
        label, *fields = path.read_text(encoding="ascii").split("\n", 1)[0].split()
    except (OSError, ValueError):
        return None
    if label != "cpu" or len(fields) < 8:
        return None
    ticks = [int(field) for field in fields[:8]]
    return CpuTimes(sum(ticks), ticks[7])


def steal_share(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """Share of the machine's time between two readings that its hypervisor gave to others."""
    if before is None or after is None or after.total <= before.total:
        return None
    return (after.steal - before.steal) / (after.total - before.total)


@dataclass(frozen=True, slots=True)
class MarkedRound:
    """A round in which the machine was not itself, and why."""

    round: int
    reason: str


def marked_rounds(machine: Iterable[RoundMachine]) -> list[MarkedRound]:
    """The rounds with more than 2 % of steal time, or a canary 1.3 times off the median of all rounds."""
    machine = list(machine)
    usual = median([one.canary_bytes_per_second for one in machine if one.canary_bytes_per_second] or [0.0])
    marked = [MarkedRound(one.round, "; ".join(_reasons(one, usual))) for one in machine]
    return [one for one in marked if one.reason]


def _reasons(one: RoundMachine, usual: float) -> list[str]:
    reasons = []
    if one.steal_share is not None and one.steal_share > MOST_STEAL:
        reasons.append(f"steal time {one.steal_share:.1%}")
    rate = one.canary_bytes_per_second
    if rate and not usual / CANARY_FACTOR <= rate <= usual * CANARY_FACTOR:
        reasons.append(f"memory read at {rate / 1e9:.1f} GB/s, usually {usual / 1e9:.1f}")
    return reasons
