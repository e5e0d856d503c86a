"""What a sweep of very many requests takes to check and to report: memory by request, which is bounded."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from loadtests.run.rows import each_row
from loadtests.run.run_file import read_run
from loadtests.run.validation import CheckedRows, check_rows
from tests.support.long_sweeps import make_long_results, peak_bytes_of_report

pytestmark = pytest.mark.slow

GATES_BYTES = 60
"""Of a request that has passed: two indexes, a latency and a hash, in arrays that grow ahead."""

REPORT_BYTES = 1000
"""A million requests within a gigabyte, beside what a short sweep takes."""


def test_gates_keep_some_bytes_of_a_request(tmp_path: Path) -> None:
    few, many = 2_000, 12_000
    make_long_results(tmp_path, many)
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


def test_a_report_takes_less_than_a_kilobyte_per_request(tmp_path: Path) -> None:
    counts, peaks = [], []
    for rows in (2_000, 60_000):
        folder = tmp_path / str(rows)
        folder.mkdir()
        counts.append(make_long_results(folder, rows))
        peaks.append(peak_bytes_of_report(folder))
    assert (peaks[1] - peaks[0]) / (counts[1] - counts[0]) < REPORT_BYTES


def test_a_long_sweep_made_for_these_tests_is_a_valid_one(tmp_path: Path) -> None:
    count = make_long_results(tmp_path, 3_000)
    gates = check_rows(tmp_path).gates_of(tmp_path, read_run(tmp_path))
    assert not [gate.name for gate in gates if gate.passed is False]
    details = {gate.name: gate.detail for gate in gates}
    assert details["client rows = server's count"] == f"{count} both, per mode"
    sets, of_sets = details["same texts in all modes"].split()[:3:2]
    assert sets == of_sets != "0"
