"""Samples this process by `perf record`, with instants on the clock of `time.perf_counter_ns`."""

from __future__ import annotations

import os
import re
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

from service.step.native.symbols import Side, side_of

SAMPLES_PER_SECOND = 1999
START_SECONDS = 15.0
STOP_SECONDS = 15.0


class Sample(NamedTuple):
    """The function on top of the stack at an instant of `time.perf_counter_ns`, its binary and its class."""

    instant_ns: int
    side: Side
    symbol: str = ""
    binary: str = ""


class PerfError(RuntimeError):
    """perf cannot be used here; the message has the reason."""


class Recording:
    """The samples of a recording, in order; empty until its block has ended."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []


@contextmanager
def recording(cpus: set[int]) -> Iterator[Recording]:
    """Within: a perf on `cpus` samples this process. Raises PerfError where perf is missing or refused."""
    if shutil.which("perf") is None:
        raise PerfError("perf is not installed (Debian: linux-perf)")
    found = Recording()
    with tempfile.TemporaryDirectory(prefix="launchbound-") as folder:
        data = Path(folder) / "perf.data"
        with _sampling(data, cpus):
            yield found
        found.samples = _read(data)


@contextmanager
def _sampling(data: Path, cpus: set[int]) -> Iterator[None]:
    """Start perf, wait until it acknowledges that it samples, and stop it so that it writes its file."""
    ack_read, ack_write = os.pipe()
    control_read, control_write = os.pipe()
    options = f"-q -e cpu-clock -F {SAMPLES_PER_SECOND} -k CLOCK_MONOTONIC -p {os.getpid()} -D -1"
    channels = f"--control=fd:{control_read},{ack_write}"
    process = subprocess.Popen(
        ["perf", "record", *options.split(), "-o", str(data), channels],
        pass_fds=(control_read, ack_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        os.sched_setaffinity(process.pid, cpus)
        os.write(control_write, b"enable\n")
        _await_acknowledged(process, ack_read)
        yield
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=STOP_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        for descriptor in (ack_read, ack_write, control_read, control_write):
            os.close(descriptor)


def _await_acknowledged(process: subprocess.Popen[bytes], ack_read: int) -> None:
    deadline = monotonic() + START_SECONDS
    while process.poll() is None and monotonic() < deadline:
        if select.select([ack_read], [], [], 0.2)[0]:
            return
    process.kill()
    _, errors = process.communicate()
    lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
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


_LINE = re.compile(r"^\s*(\d+)\.(\d{9}):\s+[0-9a-f]+\s+(.*) \((.*)\)$")


def parse(line: str) -> tuple[int, str, str] | None:
    """(nanoseconds, symbol, binary) of a line of `perf script -F time,ip,sym,dso --ns`, else None."""
    found = _LINE.match(line.rstrip("\n"))
    if found is None:
        return None
    seconds, nanoseconds, symbol, binary = found.groups()
    return int(seconds) * 1_000_000_000 + int(nanoseconds), symbol, binary
