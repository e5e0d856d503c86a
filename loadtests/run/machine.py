"""The machine during a sweep: cores, steal time, speed of memory (the canary), clocks of a GPU."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from loadtests.run.rows import RowsError
from loadtests.run.run_file import RoundMachine
from service.parent_death import owned


@contextmanager
def off_cores(cpus: Iterable[int]) -> Iterator[list[int]]:
    """Exclude `cpus` from the affinity of this process's threads, unless none are left; yields its cores."""
    before = os.sched_getaffinity(0)
    allowed = before - set(cpus) or before
    _bind(allowed)
    try:
        yield sorted(allowed)
    finally:
        _bind(before)


def _bind(cpus: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cpus)
        except ProcessLookupError:
            continue  # the thread ended since it was listed


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


SAMPLE_MILLISECONDS = 500
NUMBERS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The same field by its newer and its older name; a driver that lacks one refuses the whole query."""

IDLE = 0x1
"""The reason of a GPU that has nothing to do, whose clocks say nothing of what was measured."""

REASON_BITS = {
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
"""`nvmlClocksEventReason…` of NVML's header, but for IDLE."""


TIME = "timestamp"
"""Of a sample, last in its line; files of before it was asked for lack it."""

TIME_FORMAT = "%Y/%m/%d %H:%M:%S.%f"
"""In the time zone of nvidia-smi's process, which is given UTC."""


def clocks_file(folder: Path, part: int) -> Path:
    """Where the samples of a sweep's part are."""
    return folder / f"gpu-clocks-{part}.csv"


def query_of() -> tuple[list[str], str | None]:
    """The nvidia-smi command that this driver understands, and why there is none where there is not."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], "nvidia-smi does not run here: there is no such program"
    why = ""
    for reason in REASONS:
        fields = ",".join(("uuid", *NUMBERS, reason, TIME))
        command = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return [], f"nvidia-smi does not run here: {error}"
        if done.returncode == 0:
            return command, None
        why = (done.stdout + done.stderr).strip()[-120:]
    return [], f"nvidia-smi refuses the query: {why}"


@contextmanager
def watched(command: list[str], file: Path) -> Iterator[None]:
    """Within: sampled into `file`; nothing where `command` is empty. The sampling ends with this process."""
    if not command:
        yield
        return
    with file.open("wb") as out:
        process = subprocess.Popen(
            owned([*command, f"--loop-ms={SAMPLE_MILLISECONDS}"], signal.SIGKILL),
            stdout=out,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TZ": "UTC"},
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def clocks_summary(file: Path) -> list[dict[str, Any]]:
    """Per GPU in `file`: least, median and most of each number, and every throttle reason seen.

    Samples of an idle GPU are counted (`idle`, of all `samples`) and in nothing else. Empty where nothing was
    sampled. What the GPU does not report ([N/A]) is left out.
    """
    by_gpu: dict[str, list[list[str]]] = {}
    for _, line in _samples(file):
        by_gpu.setdefault(line[0], []).append(line[1 : len(NUMBERS) + 2])
    return [{"gpu": gpu, "samples": len(lines), **_of(lines)} for gpu, lines in by_gpu.items()]


def power_samples(file: Path) -> dict[str, list[tuple[float, float]]]:
    """Per GPU in `file` its (seconds since the epoch, watts), by time; only of samples that have both.

    Raises RowsError where a sample's time is none.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for number, line in _samples(file):
        watts = _number(line[1 + NUMBERS.index("power.draw")])
        if len(line) > len(NUMBERS) + 2 and watts is not None:
            try:
                when = datetime.strptime(line[-1], TIME_FORMAT).replace(tzinfo=UTC)
            except ValueError as error:
                raise RowsError(f"{file}, line {number}: {line[-1]!r} is no time of a sample") from error
            found.setdefault(line[0], []).append((when.timestamp(), watts))
    return found


def _samples(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The samples of `file` with the numbers of their lines; none where it is missing.

    Without what nvidia-smi says in other words, and without a last line that it was writing when it ended.
    """
    if file.exists():
        whole, _, _ = file.read_text(errors="replace").rpartition("\n")
        for number, line in enumerate(csv.reader(whole.splitlines(), skipinitialspace=True), 1):
            if len(line) in (len(NUMBERS) + 2, len(NUMBERS) + 3):
                yield number, line


def _of(lines: list[list[str]]) -> dict[str, Any]:
    busy = [line for line in lines if not _bits(line[-1]) & IDLE]
    found: dict[str, Any] = {"idle": len(lines) - len(busy)}
    for place, name in enumerate(NUMBERS):
        values = [value for line in busy if (value := _number(line[place])) is not None]
        if values:
            found[name] = {"least": min(values), "median": median(values), "most": max(values)}
    bits = 0
    for line in busy:
        bits |= _bits(line[-1])
    found["reasons"] = [text for bit, text in REASON_BITS.items() if bits & bit]
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _bits(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
