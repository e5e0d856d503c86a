"""Starts the load generator process and yields its events."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from threading import Thread

import msgspec

from loadtests.run.assignment import Assignment, GeneratorEvent
from loadtests.run.environment import REPOSITORY
from service.parent_death import owned

HEARTBEAT_SECONDS = 1.0


def run_load_generator(
    assignment: Assignment, log: Path, inherited: Sequence[int] = ()
) -> Generator[GeneratorEvent | None]:
    """Run the load generator on `assignment`; yields its events, and None after each second without one.

    Closing this generator terminates the process, and so does the end of this one. It has the descriptors
    `inherited`. Its standard error goes to `log`.
    """
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    with log.open("ab") as errors:
        process = subprocess.Popen(
            owned([sys.executable, "-m", "loadtests.run.load_generator"], signal.SIGKILL),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=tuple(inherited),
        )
    assert process.stdin is not None
    assert process.stdout is not None
    lines: queue.Queue[bytes | None] = queue.Queue()

    def listen(stream: Iterable[bytes]) -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    reader = Thread(target=listen, args=(process.stdout,), daemon=True)
    try:
        with process.stdin:
            process.stdin.write(msgspec.json.encode(assignment))
        reader.start()
        decoder = msgspec.json.Decoder(GeneratorEvent)
        while True:
            try:
                line = lines.get(timeout=HEARTBEAT_SECONDS)
            except queue.Empty:
                yield None
                continue
            if line is None:
                return
            yield decoder.decode(line)
    finally:
        process.terminate()
        process.wait()
        if reader.is_alive():
            reader.join()
        process.stdout.close()
