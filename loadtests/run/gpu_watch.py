"""The GPU's clocks, power and throttling while it is measured, sampled by nvidia-smi (NVML's own client).

At rest a GPU lowers its clocks, so what is read before or after a run says nothing about it.
"""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from loadtests.run.rows import RowsError
from service.parent_death import owned

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


def summary(file: Path) -> list[dict[str, Any]]:
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
