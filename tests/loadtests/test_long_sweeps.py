"""What a sweep of very many requests takes to check and to report: memory by request, which is bounded."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadtests.run.rows import ROWS_FILE, LineWriter, each_row
from loadtests.run.run_file import read_run, write_run
from loadtests.run.target import SCRAPES_FOLDER
from loadtests.run.validation import CheckedRows, check_rows
from tests.support.made_results import make_results, scrape_text

GATES_BYTES = 60
"""Of a request that has passed: two indexes, a latency and a hash, in arrays that grow ahead."""


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
    with LineWriter(folder / ROWS_FILE) as writer:
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


def test_gates_of_a_long_sweep_which_is_a_valid_one_keep_some_bytes_of_a_request(tmp_path: Path) -> None:
    few, many = 2_000, 12_000
    written = make_long_results(tmp_path, many)
    kept = []
    for count in (few, many):
        tracemalloc.start()
        checked = CheckedRows()
        for number, _ in enumerate(checked.passing(each_row(tmp_path)), start=1):
            if number == count:
                break
        kept.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert checked.finished.requests > count / 2
    assert (kept[1] - kept[0]) / (many - few) < GATES_BYTES
    gates = check_rows(tmp_path).gates_of(tmp_path, read_run(tmp_path))
    assert not [gate.name for gate in gates if gate.passed is False]
    details = {gate.name: gate.detail for gate in gates}
    assert details["client rows = server's count"] == f"{written} both, per mode"
    sets, of_sets = details["same texts in all modes"].split()[:3:2]
    assert sets == of_sets != "0"
