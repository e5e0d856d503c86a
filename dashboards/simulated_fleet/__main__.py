"""Simulate the metrics of many replicas, and say what they ask of Prometheus.

`python -m dashboards.simulated_fleet [--replicas 5,10,20,40] [--target 1000]` prints a table. Exit code 0:
done; 2: bad input, or too much for this machine.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from dashboards.simulated_fleet.measurement import Load, measured
from dashboards.simulated_fleet.projection import on_paper
from dashboards.simulated_fleet.replica import Replica
from dashboards.simulated_fleet.table import table

RETENTION_DAYS = 15.0
MOST_OF_MEMORY = 0.5
ROOM_PER_SERIES = 8000
"""Bytes of memory per series that are set aside: a young head takes more than the rule of thumb."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    options = _options(arguments)
    series = Replica(options.device).series().total()
    refusal = _refusal(max(options.replicas) * series, options.binary)
    if refusal:
        print(refusal, file=sys.stderr)
        return 2
    load = Load(options.device, options.requests_per_day / options.target / 86400, options.interval)
    readings = []
    for replicas in options.replicas:
        with TemporaryDirectory() as folder:
            readings.append(measured(options.binary, Path(folder), replicas, load, options.scrapes))
        print(f"{replicas} replicas: {readings[-1]}", file=sys.stderr)
    paper = on_paper(series, options.target, options.interval, RETENTION_DAYS)
    print("\n".join(table(readings, options.target, paper)))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dashboards.simulated_fleet", description=__doc__)
    parser.add_argument("--replicas", type=_counts, default=[5, 10, 20, 40], help="fleets, e.g. 100,200,400")
    parser.add_argument("--target", type=int, default=1000, help="the fleet to extrapolate to")
    parser.add_argument("--requests-per-day", type=float, default=10e6, help="of the target fleet together")
    parser.add_argument("--interval", type=int, default=15, help="seconds between two scrapes")
    parser.add_argument("--scrapes", type=int, default=8, help="intervals that are read over, per fleet")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--binary", default=shutil.which("prometheus"), help="Prometheus")
    return parser.parse_args(arguments)


def _counts(text: str) -> list[int]:
    counts = sorted({int(part) for part in text.split(",")})
    if len(counts) < 3 or counts[0] < 1:
        raise argparse.ArgumentTypeError("name at least three different fleets, e.g. 5,10,20")
    return counts


def _refusal(series: int, binary: str | None) -> str | None:
    """Why this cannot be run here, with the remedy."""
    if not binary:
        return "there is no prometheus on the PATH: install it (Debian: apt-get install prometheus)"
    needed, there = series * ROOM_PER_SERIES, MOST_OF_MEMORY * psutil.virtual_memory().available
    if needed > there:
        return (
            f"{series:,} series may take {needed / 1e9:.1f} GB, half of what is free is {there / 1e9:.1f}:"
            " name smaller --replicas"
        )
    return None


if __name__ == "__main__":
    sys.exit(main())
