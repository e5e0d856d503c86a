"""The machine during a sweep: cores, steal time, speed of memory (the canary), clocks of a GPU."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import reduce
from operator import or_
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import psutil

from loadtests.run.run_file import RoundMachine
from service.machine import pin
from service.nvml import COLUMNS, MIG_NOTE, NUMBERS, PROGRAM, SAMPLE, TIME_FORMAT
from service.parent_death import owned


@contextmanager
def off_cores(cpus: Iterable[int]) -> Iterator[list[int]]:
    """Exclude `cpus` from the affinity of this process's threads, unless none are left; yields its cores."""
    before = os.sched_getaffinity(0)
    allowed = before - set(cpus) or before
    pin(sorted(allowed))
    try:
        yield sorted(allowed)
    finally:
        pin(sorted(before))


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


def cpu_times() -> tuple[float, ...]:
    """The machine's CPU seconds since it started: user, nice, system, idle, iowait, irq, softirq, steal."""
    return tuple(psutil.cpu_times()[:8])


def steal_share(before: tuple[float, ...], after: tuple[float, ...]) -> float | None:
    """Share of the machine's time between two `cpu_times` that its hypervisor gave to others."""
    total = sum(after) - sum(before)
    return (after[7] - before[7]) / total if total > 0 else None


def marked_rounds(machine: Sequence[RoundMachine]) -> list[str]:
    """'round 3 (…)' of each with more than 2 % of steal time, or a canary 1.3 times off the median of all."""
    usual = median([one.canary_bytes_per_second for one in machine if one.canary_bytes_per_second] or [0.0])
    found = list[str]()
    for one in machine:
        reasons = []
        if one.steal_share is not None and one.steal_share > MOST_STEAL:
            reasons.append(f"steal time {one.steal_share:.1%}")
        rate = one.canary_bytes_per_second
        if rate and not usual / CANARY_FACTOR <= rate <= usual * CANARY_FACTOR:
            reasons.append(f"memory read at {rate / 1e9:.1f} GB/s, usually {usual / 1e9:.1f}")
        if reasons:
            found.append(f"round {one.round} ({'; '.join(reasons)})")
    return found


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


def clocks_file(folder: Path, part: int) -> Path:
    """The file with the GPU's samples of a sweep's part.

    At rest a GPU lowers its clocks, so a reading before or after a run says nothing about it.
    """
    return folder / f"gpu-clocks-{part}.csv"


def clocks_query() -> tuple[list[str], str | None]:
    """The command that samples the GPUs, and why there is none where they cannot be sampled."""
    try:
        done = subprocess.run(PROGRAM, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return [], "NVML does not answer within 20 s"
    return ([], done.stderr.strip()[-120:]) if done.returncode else ([*PROGRAM, SAMPLE], None)


@contextmanager
def watched(command: list[str], file: Path) -> Iterator[None]:
    """Sample into `file` within the block; nothing where `command` is empty. Ends with this process."""
    if not command:
        yield
        return
    with file.open("wb") as out:
        process = subprocess.Popen(owned(command, signal.SIGKILL), stdout=out, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def clocks_summary(file: Path) -> list[dict[str, Any]]:
    """Per GPU in `file`: least, median and most of each number, and every throttle reason seen.

    Samples of an idle GPU are counted (`idle`, of all `samples`) and in nothing else but `joules`, of all the
    `seconds` from the first sample to the last. Empty where nothing was sampled. What the GPU does not report
    is left out; `note` says whose numbers they are where that is not plain.
    """
    by_gpu: dict[str, list[dict[str, str]]] = {}
    whole = file.read_text(errors="replace").rpartition("\n")[0] if file.exists() else ""
    for line in csv.reader(whole.splitlines()):
        if len(line) == len(COLUMNS):  # not one that was being written
            by_gpu.setdefault(line[0], []).append(dict(zip(COLUMNS, line, strict=True)))
    return [{"gpu": gpu, "samples": len(found), **_summary(found)} for gpu, found in by_gpu.items()]


def _summary(samples: Sequence[dict[str, str]]) -> dict[str, Any]:
    busy = [sample for sample in samples if not _bits(sample) & IDLE]
    found: dict[str, Any] = {"idle": len(samples) - len(busy), **_energy(samples[0], samples[-1])}
    for name in NUMBERS:
        values = [value for sample in busy if (value := _number(sample[name])) is not None]
        if values:
            found[name] = {"least": min(values), "median": median(values), "most": max(values)}
    if any(sample["mig"] == "1" for sample in samples):
        found["note"] = MIG_NOTE
    bits = reduce(or_, map(_bits, busy), 0)
    return {**found, "reasons": [text for bit, text in REASON_BITS.items() if bits & bit]}


def _energy(first: dict[str, str], last: dict[str, str]) -> dict[str, float]:
    """By the GPU's own counter, which misses nothing between two samples as its power does."""
    begin, end = _number(first["energy"]), _number(last["energy"])
    times = [datetime.strptime(sample["time"], TIME_FORMAT) for sample in (first, last)]
    seconds = (times[1] - times[0]).total_seconds()
    # Less than before: the driver was loaded anew.
    if begin is None or end is None or end < begin or not seconds:
        return {}
    return {"joules": end - begin, "seconds": seconds}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _bits(sample: dict[str, str]) -> int:
    try:
        return int(sample["reasons"], 16)
    except ValueError:
        return 0
