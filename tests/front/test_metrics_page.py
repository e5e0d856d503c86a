"""docs/metrics.md is generated from the catalogue, and current."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.front.metrics import page
from service.front.metrics.catalogue import CATALOGUE


def test_the_committed_page_is_current() -> None:
    assert page.main(["--check"]) == 0


def test_a_page_that_differs_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    committed = page.PAGE.read_text()
    monkeypatch.setattr(page, "PAGE", tmp_path / "metrics.md")
    page.PAGE.write_text(committed.replace("| `engine_up` |", "| `engine_down` |"))
    assert page.main(["--check"]) == 1
    assert "python -m service.front.metrics.page --write" in capsys.readouterr().err
    assert page.main(["--write"]) == 0
    assert page.PAGE.read_text() == committed


def test_every_metric_has_one_line_of_six_cells_and_every_label_is_explained() -> None:
    lines = page.PAGE.read_text().splitlines()
    explained = {line.split(" | ")[0].removeprefix("| ") for line in lines}
    for row in CATALOGUE:
        (line,) = [line for line in lines if line.startswith(f"| `{row.name}` | {row.kind} |")]
        cells = line.strip("| ").split(" | ")
        assert len(cells) == 6
        assert cells[2] == (", ".join(row.labels) or "–")
        assert row.kind == "info" or explained.issuperset(row.labels)
