"""A visit's time splits by the samples of one request before it, which is in no statistic of latency."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

from loadtests.report.machine_selftest import misclassed
from loadtests.report.proof import proof
from loadtests.report.results import read_results
from loadtests.report.summaries import Summary
from loadtests.report.verdict import Findings
from loadtests.run.validation import validate_folder
from service.statistics.sampled_share import MISCLASSED
from tests.support.made_evidence import Row, edit_rows, with_floors, with_intervals, with_samples
from tests.support.made_results import make_results


def baseline(folder: Path) -> Summary:
    return Findings(read_results(folder)).main[0].baseline


def test_the_index_is_that_of_the_samples_and_not_of_the_floors(tmp_path: Path) -> None:
    decode = baseline(with_samples(with_intervals(make_results(tmp_path), 0.4))).decode
    assert decode.index == pytest.approx(0.6)
    assert decode.samples == 8 * 100


def test_without_scatter_the_interval_is_what_may_be_taken_for_the_other_part(tmp_path: Path) -> None:
    decode = baseline(with_samples(with_floors(with_intervals(make_results(tmp_path)), moved=3.0))).decode
    assert decode.interval is not None
    ends = 0.6 - MISCLASSED * 0.4, 0.6 + MISCLASSED * 0.6
    assert (decode.interval.low, decode.interval.high) == pytest.approx(ends)
    assert decode.wall_seconds is not None
    assert decode.dispatch_low_seconds == pytest.approx(decode.wall_seconds * (1 - ends[1]))
    assert decode.dispatch_high_seconds == pytest.approx(decode.wall_seconds * (1 - ends[0]))


def test_samples_without_a_name_might_be_of_kernels(tmp_path: Path) -> None:
    decode = baseline(with_samples(make_results(tmp_path), lambda row: (60, 40, 10))).decode
    assert decode.index == pytest.approx(0.6)
    assert decode.interval is not None
    assert decode.interval.high == pytest.approx(0.7 + MISCLASSED * 0.7)
    assert decode.interval.low == pytest.approx(0.6 - MISCLASSED * 0.4)


def test_the_scatter_of_the_rounds_is_in_the_interval(tmp_path: Path) -> None:
    def scattered(row: Row) -> tuple[int, int, int]:
        kernel = round(Random(f"{row['round']}/{row['cell']}").gauss(600, 80))
        return kernel, 1000 - kernel, 0

    decode = baseline(with_samples(make_results(tmp_path), scattered)).decode
    assert decode.interval is not None
    assert decode.interval.high - decode.interval.low > MISCLASSED + 0.05


def test_each_round_is_split_by_its_own_samples(tmp_path: Path) -> None:
    folder = with_samples(make_results(tmp_path), lambda row: (10 * row["round"], 100 - 10 * row["round"], 0))
    rows = read_results(folder).measured.collect()
    share = rows["decode_kernel_seconds"] / rows["decode_wall_seconds"]
    assert share.to_list() == pytest.approx((rows["round"] / 10).to_list())
    total = rows["prefill_kernel_seconds"] + rows["decode_kernel_seconds"]
    assert rows["kernel_seconds"].to_list() == pytest.approx(total.to_list())


def test_dispatch_and_kernel_still_make_the_time_of_the_steps(tmp_path: Path) -> None:
    before = read_results(make_results(tmp_path)).measured.collect()
    after = read_results(with_samples(tmp_path)).measured.collect()
    for phase in ("prefill", "decode"):
        parts = after[f"{phase}_dispatch_seconds"] + after[f"{phase}_kernel_seconds"]
        assert parts.to_list() == pytest.approx(before[f"{phase}_wall_seconds"].to_list())


def test_a_visit_whose_sample_failed_is_split_by_those_of_the_cells_others(tmp_path: Path) -> None:
    folder = with_samples(make_results(tmp_path))
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["stage"] == "sample" and row["round"] == 3:
            row |= {"status": 500, "error": "broke", "prefill": None, "decode": None}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    decode = baseline(folder).decode
    assert decode.index == pytest.approx(0.6)
    assert decode.samples == 7 * 100


def test_requests_that_were_merged_keep_the_split_of_the_engine(tmp_path: Path) -> None:
    folder = with_samples(with_intervals(make_results(tmp_path)))
    edit_rows(folder, lambda row: row.update(sources=row["sources"] | {"steps": "shared"}))
    decode = baseline(folder).decode
    assert decode.index != pytest.approx(0.6, abs=0.05)
    assert decode.samples is None


def test_a_sampled_request_is_in_no_statistic_of_latency(tmp_path: Path) -> None:
    before = baseline(make_results(tmp_path))
    after = baseline(with_samples(tmp_path))
    assert (after.latency, after.requests, after.tokens_per_second) == (
        before.latency, before.requests, before.tokens_per_second,
    )  # fmt: skip


def test_a_folder_without_samples_is_read_as_it_was(tmp_path: Path) -> None:
    rows = read_results(with_intervals(make_results(tmp_path))).measured.collect()
    written = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    measured = [row for row in written if row["stage"] == "measure"]
    assert rows["dispatch_seconds"].to_list() == [row["dispatch_seconds"] for row in measured]
    assert rows["decode_dispatch_share"].null_count() == rows.height
    assert rows.select(pl.col("decode_samples").null_count()).item() == rows.height


@pytest.mark.parametrize(("high", "found"), [(0.06, MISCLASSED), (0.17, 0.17), (None, MISCLASSED)])
def test_a_selftest_that_finds_more_misclassed_widens_the_interval(high: float | None, found: float) -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a kernel 8 times longer: dispatch, eager", "high": 0.02},
        {"name": "more host work per step: kernel, compiled", "high": high},
        {"name": "more host work per step: dispatch, compiled", "high": 1.3},
    ]
    assert misclassed({"rows": rows}) == found
    assert misclassed(None) == MISCLASSED


def gate(folder: Path, name: str) -> Any:
    run = read_results(folder).run
    return next(gate for gate in validate_folder(folder, run) if gate.name == name)


def test_gates_about_floors_do_not_apply_where_every_cell_was_sampled(tmp_path: Path) -> None:
    folder = with_floors(with_intervals(make_results(tmp_path)), moved=3.0)
    edit_rows(folder, lambda row: row["decode"].update(clipped=True))
    assert gate(folder, "floors before = after").passed is False
    assert gate(folder, "clipped estimates").passed is False
    with_samples(folder)
    assert gate(folder, "floors before = after").passed is None
    assert gate(folder, "clipped estimates").passed is None


def test_one_cell_without_samples_leaves_the_floors_gate_in_force(tmp_path: Path) -> None:
    folder = with_samples(with_floors(with_intervals(make_results(tmp_path)), moved=3.0))
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [row for row in rows if row["stage"] != "sample" or not row["cell"].startswith("compiled b=4")]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert gate(folder, "floors before = after").passed is False


def test_the_report_says_what_the_split_rests_on_and_where_the_twin_lies(tmp_path: Path) -> None:
    folder = with_samples(with_floors(with_intervals(make_results(tmp_path)), off=0.12))
    told = proof(Findings(read_results(folder))).sentences[-1]
    assert told.startswith("Dispatch and kernel rest on 24,000 samples")
    assert "12 points more for kernels" in told
    assert "every interval reaches" not in told


def test_a_twin_that_reads_more_dispatch_than_samples_do_is_told_as_a_contradiction(tmp_path: Path) -> None:
    folder = with_samples(with_floors(with_intervals(make_results(tmp_path)), off=-0.2))
    told = proof(Findings(read_results(folder))).sentences[-1]
    assert "one of the two is wrong" in told
