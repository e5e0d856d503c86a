"""The documented functions agree with the files, and the documented example runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from loadtests import library
from loadtests.plan.presets import make_plan
from loadtests.report.csv_files import write_csv
from loadtests.report.report_files import make_report
from loadtests.run.rows import read_rows
from tests.support.made_results import make_results

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reported sweep of two modes."""
    folder = make_results(
        tmp_path_factory.mktemp("swept"), plan=make_plan("quick", 1, ["eager", "compiled"], [1])
    )
    make_report(folder)
    return folder


def test_requests_are_the_rows(folder: Path) -> None:
    frame, rows = library.requests(folder), read_rows(folder)
    assert frame["latency_seconds"].to_list() == [row.latency_seconds for row in rows]
    assert frame["steps"].to_list() == [row.steps for row in rows]
    assert frame["ok"].all()
    periods = [row.decode.period_seconds for row in rows if row.decode]
    assert frame["decode_period_seconds"].to_list() == periods != [None] * len(rows)
    assert frame["decode_device_span_seconds"].null_count() == frame.height
    assert frame["decode_kernel_seconds"].to_list() == [r.decode.kernel_seconds for r in rows if r.decode]


def test_rounds_and_cells_are_the_csv_files(folder: Path) -> None:
    for table, name in ((library.rounds(folder), "cells.csv"), (library.cells(folder), "summary.csv")):
        written = pl.read_csv(folder / name)
        assert table.columns == written.columns
        assert table["latency_seconds"].to_list() == pytest.approx(written["latency_seconds"].to_list())


def test_no_text_of_a_csv_file_begins_as_a_formula_and_numbers_stay_numbers(tmp_path: Path) -> None:
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "a=1", None]
    table = pl.DataFrame({"text": texts, "number": [-1.5] * len(texts), "whole": range(-len(texts), 0)})
    write_csv(tmp_path / "x.csv", table)
    found = pl.read_csv(tmp_path / "x.csv")
    assert found["text"].to_list() == [*(f"'{text}" for text in texts[:7]), *texts[7:]]
    assert found.drop("text").equals(table.drop("text"))


def test_a_comparison_has_a_row_per_cell_with_its_interval(folder: Path, tmp_path: Path) -> None:
    found = library.comparison(folder, shutil.copytree(folder, tmp_path / "other"))
    assert found["mode"].to_list() == ["eager", "compiled"]
    assert (
        found.select((pl.col("low") < pl.col("ratio")) & (pl.col("ratio") < pl.col("high"))).to_series().all()
    )
    assert found["word"].unique().to_list() == ["no detectable difference"]


def test_the_documented_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = EXAMPLE.findall((ROOT / "docs" / "sweeps.md").read_text())
    names: dict[str, object] = {}
    exec(compile(code, "docs/sweeps.md", "exec"), names)
    said = re.search(r"compiled was faster in (\d+) of (\d+) rounds: (\w+)", capsys.readouterr().out)
    assert said is not None
    wins, rounds = (int(said[n]) for n in (1, 2))
    assert rounds > 0
    assert said[3] != "faster" or wins > rounds / 2
