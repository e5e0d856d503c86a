"""The files and the table of a selftest."""

from __future__ import annotations

import json
from pathlib import Path

from service.selftest.report import FILE, measured, new_report, read, write
from service.selftest.results import interval_result, not_measurable
from service.statistics.intervals import Interval


def test_the_report_has_the_fields_that_other_programs_read(tmp_path: Path) -> None:
    rows = [
        interval_result("a", "≤ 1", Interval(0.55, 0.5, 0.6, 8), most=1.0),
        not_measurable("b", "all", "no GPU"),
    ]
    machine: dict[str, str | int] = {"cpu": "A CPU", "device": "A CPU", "torch": "2.13.0", "threads": 1}
    report = new_report(rows, machine, ["eager"], 12.0)
    path = write(report, tmp_path / "selftest")
    assert path.name == FILE
    document = json.loads(path.read_text())
    assert {"format_version", "commit", "dirty", "machine", "cpu", "created", "rows"} <= document.keys()
    assert (document["passed"], document["detail"]) == (True, "1 pass, 1 not measurable here")
    assert document["format_version"] == 1
    assert document["machine"] == "A CPU"
    for row in document["rows"]:
        assert {"name", "bound", "value", "low", "high", "verdict", "note"} <= row.keys()
    assert document["rows"][1]["value"] is None
    assert read(path) == report
    assert report.failed == []


def test_a_duration_is_shown_in_its_unit_and_a_missing_value_as_a_dash() -> None:
    seconds = interval_result("x", "b", Interval(28.9e-6, 28.7e-6, 29.3e-6, 9), unit="s")
    assert measured(seconds) == "28.9 [28.7, 29.3] µs"
    assert measured(not_measurable("x", "b", "why")) == "–"
