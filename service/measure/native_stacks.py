"""Runs `perf record` beside this process and reads its samples back, on the clock that we measure with."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from service.measure.symbols import Side, parse, side_of

SAMPLES_PER_SECOND = 1999
START_SECONDS = STOP_SECONDS = 15.0


class Sample(NamedTuple):
    """What ran at an instant of `time.perf_counter_ns`: a function of a binary, and its class."""

    instant_ns: int
    side: Side
    symbol: str = ""
    binary: str = ""


class PerfError(RuntimeError):
    """perf cannot be used here; the message says why."""


class Recording:
    """What a recording saw; filled when its block ends."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []


@contextmanager
def recording(cpus: set[int]) -> Iterator[Recording]:
    """Within: this process is sampled, by a perf that runs on `cpus`. Raises PerfError if that is refused."""
    if shutil.which("perf") is None:
        raise PerfError("perf is not installed (Debian: linux-perf)")
    seen = Recording()
    with tempfile.TemporaryDirectory(prefix="launchbound-") as folder:
        data = Path(folder) / "perf.data"
        with _sampling(data, cpus):
            yield seen
        seen.samples = _read(data)


@contextmanager
def _sampling(data: Path, cpus: set[int]) -> Iterator[None]:
    """Start perf, wait until it says that it samples, and end it in order."""
    (ready, tell), (control, order) = os.pipe(), os.pipe()
    command = [
        "perf",
        "record",
        "-q",
        "-e",
        "cpu-clock",
        "-F",
        str(SAMPLES_PER_SECOND),
        "-k",
        "CLOCK_MONOTONIC",
        "-p",
        str(os.getpid()),
        "-o",
        str(data),
        "-D",
        "-1",
        f"--control=fd:{control},{tell}",
    ]
    process = subprocess.Popen(
        command,
        pass_fds=(control, tell),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        os.sched_setaffinity(process.pid, cpus)
        os.write(order, b"enable\n")
        _await(process, ready)
        yield
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=STOP_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        for descriptor in (ready, tell, control, order):
            os.close(descriptor)


def _await(process: subprocess.Popen[bytes], ready: int) -> None:
    deadline = monotonic() + START_SECONDS
    while process.poll() is None and monotonic() < deadline:
        if select.select([ready], [], [], 0.2)[0]:
            return
    process.kill()
    _, words = process.communicate()
    lines = [line for line in words.decode(errors="replace").splitlines() if line.strip()]
    raise PerfError(f"perf record refused: {lines[0].strip() if lines else 'it did not start sampling'}")


def _read(data: Path) -> list[Sample]:
    command = ["perf", "script", "-i", str(data), "-F", "time,ip,sym,dso", "--ns"]
    samples: list[Sample] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if (parsed := parse(line)) is not None:
                instant, symbol, binary = parsed
                samples.append(Sample(instant, side_of(symbol, binary), symbol, binary))
    return samples
