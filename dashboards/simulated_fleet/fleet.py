"""The processes that answer for a fleet of replicas."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dashboards.simulated_fleet.pages import address
from service.protocol.parent_death import owned

PER_PROCESS = 200
"""Replicas of one process: each listens on a socket of its own, and many shells allow 1,024 open files."""


@contextmanager
def fleet(replicas: int, device: str, requests_per_second: float) -> Iterator[list[str]]:
    """Serve `replicas` pages until the block ends; yields where, as "address:port".

    `requests_per_second` are those of one replica. Raises RuntimeError where a process does not start.
    """
    started: list[subprocess.Popen[str]] = []
    try:
        targets = []
        for first in range(0, replicas, PER_PROCESS):
            count = min(PER_PROCESS, replicas - first)
            told = [str(first), str(count), device, str(requests_per_second)]
            command = owned([sys.executable, "-m", "dashboards.simulated_fleet.pages", *told])
            running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            started.append(running)
            assert running.stdout is not None
            port = running.stdout.readline().strip()
            if not port:
                raise RuntimeError(f"the replicas from {first} on did not start; see the message above")
            targets += [f"{address(number)}:{port}" for number in range(first, first + count)]
        yield targets
    finally:
        for running in started:
            running.terminate()
            running.communicate(timeout=20)
