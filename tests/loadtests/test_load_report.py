"""The report finds the knee of a made sweep, bounds it where the ladder does, and says how it judged."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from loadtests.report.findings import Findings
from loadtests.report.load import LoadCell, ModeKnee
from loadtests.report.load_section import load_tables
from loadtests.report.results import Results, read_results
from service.statistics.knee import Bounds
from tests.support.made_plans import make_report
from tests.support.made_results import SERVICE, edit_rows, make_load, make_results


@cache
def results(folder: Path) -> Results:
    """Those of a folder that changes no more."""
    return read_results(folder)


def knees_of(folder: Path) -> dict[str, ModeKnee]:
    (knees,) = Findings(results(folder)).load.knees.values()
    return {one.mode: one for one in knees}


def said(folder: Path) -> dict[str, str]:
    """The table of knees: by mode its knee."""
    knees, *_ = load_tables(Findings(results(folder)).load)
    return {row[0].text: str(row[1]) for row in knees.rows}


def cells(folder: Path, mode: str) -> dict[float, LoadCell]:
    """By their rate."""
    return {one.rate: one for one in Findings(results(folder)).load.cells if one.cell.mode == mode}


def test_a_ladder_below_the_knee_says_at_least_and_one_above_it_says_below(tmp_path: Path) -> None:
    slow, fast = make_load(tmp_path / "slow", (5, 10)), make_load(tmp_path / "fast", (150, 200))
    assert said(fast)["eager"] == "below 150"
    assert knees_of(slow)["eager"].estimate.value == Bounds(10.0, float("inf"))


def test_rounds_that_exclude_no_rate_give_no_knee(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 40), requests=8, rounds=2)
    assert said(tmp_path)["eager"] == "– (no rate is excluded: more requests or rounds would)"


@pytest.mark.slow
def test_the_knee_is_where_answers_no_longer_keep_up(tmp_path: Path) -> None:
    make_load(tmp_path, (40, 50, 60, 80, 100, 120), requests=150)
    for mode, seconds in SERVICE.items():
        estimate = knees_of(tmp_path)[mode].estimate
        assert estimate.value.low * seconds == pytest.approx(1.0, abs=0.12)
        assert estimate.low <= estimate.value.low <= estimate.high
    assert cells(tmp_path, "eager")[120].served_rate.value == pytest.approx(50, rel=0.05)


def test_cutting_every_block_at_a_rate_puts_the_knee_below_it_and_leaves_no_latency(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 40, 120), cut=[(number, "eager") for number in range(1, 9)])
    assert knees_of(tmp_path)["eager"].estimate.value.high < 120
    cut = cells(tmp_path, "eager")[120]
    assert (cut.cut, cut.quantiles["e2e"][0.5]) == (8, None)
    assert cut.served_rate.value == pytest.approx(50, rel=0.05)
    assert cells(tmp_path, "eager")[20].quantiles["e2e"][0.5].value > 0


def test_refused_requests_have_no_latency(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 200), most_waiting=4)
    found = cells(tmp_path, "eager")[200]
    assert found.rejected > 400
    assert found.served_rate.value == pytest.approx(50, rel=0.1)
    assert found.quantiles["e2e"][0.5].value < 0.15


def test_merged_requests_have_their_effective_batch(tmp_path: Path) -> None:
    in_turn, merged = (make_load(tmp_path / name, (30,), requests=40) for name in ("in turn", "merged"))
    edit_rows(merged, lambda row: row.update(effective_batch=1.0 + row["round"] % 2))
    before, after = (cells(folder, "eager")[30] for folder in (in_turn, merged))
    batch = after.effective_batch
    assert batch.value == pytest.approx(1.5)
    assert batch.low < 1.5 < batch.high
    assert after.queue_wait.value == before.queue_wait.value > 0
    assert before.effective_batch is None


def test_a_block_that_the_end_of_a_sweep_interrupted_is_left_out(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 100), requests=40)
    path = tmp_path / "requests.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    ended = max(
        n for n, line in enumerate(rows) if '"mode": "inference_mode"' in line and '"rate": 100' in line
    )
    path.write_text("".join(rows[: ended - 4] + rows[ended + 1 :]))
    assert {mode: one.rounds for mode, one in knees_of(tmp_path).items()} == {
        "eager": 8,
        "inference_mode": 7,
    }


def test_load_has_a_section_only_where_there_is_some(tmp_path: Path) -> None:
    for folder, told in (
        (make_load(tmp_path / "loaded", (20, 40)), True),
        (make_results(tmp_path / "no"), False),
    ):
        make_report(folder)
        text = (folder / "report.md").read_text()
        assert ("Under load" in text) == ("of the rate offered or more" in text) == told
