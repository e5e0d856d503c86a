"""Results folders of long sweeps, made from short ones, and what reporting them takes.

`python -m tests.support.long_sweeps 1000000` makes one of so many rows, reports it in a process of its own,
and prints that process's seconds and peak memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import msgspec

from loadtests.run.rows import ROWS_FILE, RowWriter
from loadtests.run.run_file import read_run, write_run
from loadtests.run.target import SCRAPES_FOLDER
from tests.support.made_results import make_results, scrape_text


def make_long_results(folder: Path, rows: int) -> int:
    """Write a sweep of about `rows` rows: each visit's requests over and over, numbered, with texts' digests.

    Returns how many there are.
    """
    make_results(folder)
    path = folder / ROWS_FILE
    short = [json.loads(line) for line in path.read_text().splitlines()]
    times = max(1, rows // len(short))
    path.unlink()
    counts = Counter[str]()
    with RowWriter(folder) as writer:
        for sequence, row in enumerate(_repeated(short, times)):
            writer.write(row | {"sequence": sequence, "request_id": f"{sequence:032x}"})
            counts[row["mode"]] += 1
    run = read_run(folder)
    cells = [msgspec.structs.replace(cell, requests=cell.requests * times) for cell in run.plan.cells]
    run.plan = msgspec.structs.replace(run.plan, cells=tuple(cells))
    write_run(folder, run)
    (folder / SCRAPES_FOLDER / "after.prom").write_text(scrape_text(counts))
    return counts.total()


def _repeated(short: list[dict[str, Any]], times: int) -> Iterator[dict[str, Any]]:
    """The rows of warm-up, then those of each visit `times` times."""
    visits: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in short:
        if row["stage"] == "measure":
            visits.setdefault((row["round"], row["cell"]), []).append(row)
        else:
            yield row
    for (number, _), visit in visits.items():
        for index in range(times * len(visit)):
            row = visit[index % len(visit)]
            digest = f"{number:04x}{row['batch_size']:04x}{index:08x}"
            yield row | {"index": index, "text_digest": digest}


def peak_bytes_of_report(folder: Path) -> int:
    """The peak resident memory of a process that reports `folder`."""
    program = "import resource, sys; from loadtests.report.report_files import make_report; "
    program += "assert make_report(sys.argv[1])['valid']; "
    program += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def main(rows: int) -> None:
    """Make, report, and print."""
    with TemporaryDirectory() as root:
        count = make_long_results(Path(root), rows)
        began = perf_counter()
        peak = peak_bytes_of_report(Path(root))
        wall_seconds = perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        size = (Path(root) / ROWS_FILE).stat().st_size
    print(
        f"{count} rows of {size / count:.0f} bytes: {wall_seconds:.1f} s of wall, "
        f"{used.ru_utime + used.ru_stime:.1f} s of CPU, at most {peak / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
