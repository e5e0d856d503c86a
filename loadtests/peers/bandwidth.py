"""How fast one core reads a buffer: run as a process, `python -m loadtests.peers.bandwidth BYTES CPU`."""

from __future__ import annotations

import os
import subprocess
import sys
from time import perf_counter

import numpy as np

from loadtests.peers.process import ONE_THREAD
from loadtests.peers.results import Limit
from loadtests.run.folder import REPOSITORY

SECONDS = 1.0
BYTES_MOST = 512 * 2**20
"""A larger buffer is read no slower: it is beyond every cache."""


def limit(weight_bytes: int, steps: int, cpu: int) -> Limit:
    """The bandwidth limit of `steps` steps, measured on core `cpu` in a process of its own."""
    size = min(weight_bytes, BYTES_MOST)
    done = subprocess.run(
        [sys.executable, "-m", "loadtests.peers.bandwidth", str(size), str(cpu)],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        # numpy's linear algebra counts cores when it is imported.
        env={**os.environ, **ONE_THREAD},
    )
    rate = float(done.stdout)
    return Limit(weight_bytes=weight_bytes, buffer_bytes=size, bytes_per_second=rate, steps=steps)


def fastest_read(size_bytes: int) -> float:
    """Bytes per second of the fastest pass over `size_bytes`, of those in a second (at least two).

    A pass is a dot product of the buffer with itself, which loads every element and computes hardly anything.
    The fastest counts, because a limit must not be too high.
    """
    buffer = np.ones(size_bytes // 4, dtype=np.float32)
    rates = list[float]()
    began = perf_counter()
    while perf_counter() - began < SECONDS or len(rates) < 2:
        start = perf_counter()
        np.dot(buffer, buffer)
        rates.append(buffer.nbytes / (perf_counter() - start))
    return max(rates)


if __name__ == "__main__":
    size, core = map(int, sys.argv[1:])
    os.sched_setaffinity(0, [core])
    print(fastest_read(size))
