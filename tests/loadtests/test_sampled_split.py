"""A cell's time splits by the pooled samples of its requests; a sampled one is in no statistic of latency."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtests.report.machine_selftest import left_open
from loadtests.report.results import read_results
from loadtests.report.summaries import Summary
from loadtests.report.verdict import Findings
from loadtests.run.run_file import SweepRun
from service.records import SampleCounts
from service.statistics.boundedness import CLASSES, PROVED, RATE, UNPROVED, LeftOpen, dispatch_share
from service.statistics.intervals import Interval
from tests.support.made_results import (
    CLEAR,
    Row,
    edit_rows,
    make_results,
    samples_in,
    with_intervals,
    with_samples,
)

ROUNDS = 8


def baseline(folder: Path) -> Summary:
    return Findings(read_results(folder)).main[0].baseline


def kernel_share(kernel: int, host: int, unclassified: int = 0, bounds: LeftOpen = UNPROVED) -> Interval:
    share = dispatch_share(kernel, host, unclassified, bounds)
    assert share is not None
    return Interval(1 - share.value, 1 - share.high, 1 - share.low, kernel + host)


def edit_all(folder: Path, change: Callable[[Row], bool]) -> Path:
    """Keep the rows of which `change` says so."""
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if change(row)))
    return folder


def test_samples_of_all_rounds_are_pooled_and_take_the_place_of_the_rows_own_split(tmp_path: Path) -> None:
    def growing(row: Row) -> tuple[int, int, int]:
        return 100 * row["round"], 100, 0

    decode = baseline(with_samples(with_intervals(make_results(tmp_path), 0.4), growing)).decode
    assert decode.samples == SampleCounts(kernel=3600, host=800, system=ROUNDS, unclassified=0)
    assert decode.index == pytest.approx(36 / 44)
    assert decode.interval == kernel_share(3600, 800)


def test_samples_in_code_of_no_class_widen_both_ends(tmp_path: Path) -> None:
    decode = baseline(with_samples(make_results(tmp_path), lambda row: (60, 40, 10))).decode
    assert decode.index == pytest.approx(0.6)
    assert decode.interval == kernel_share(ROUNDS * 60, ROUNDS * 40, ROUNDS * 10)
    without = kernel_share(ROUNDS * 60, ROUNDS * 40)
    assert decode.interval.low < without.low < without.high < decode.interval.high


def test_more_samples_narrow_the_interval(tmp_path: Path) -> None:
    few = baseline(with_samples(make_results(tmp_path), lambda row: (6, 4, 0))).decode.interval
    edit_rows(tmp_path, lambda row: row["decode"].update(samples_in(600, 400, 0)))
    many = baseline(tmp_path).decode.interval
    assert few is not None
    assert many is not None
    assert few.low < many.low < many.high < few.high


def test_the_ends_of_dispatch_are_those_of_the_share(tmp_path: Path) -> None:
    decode = baseline(with_samples(make_results(tmp_path))).decode
    assert decode.interval is not None
    assert decode.wall_seconds is not None
    assert decode.dispatch_low_seconds == pytest.approx(decode.wall_seconds * (1 - decode.interval.high))
    assert decode.dispatch_high_seconds == pytest.approx(decode.wall_seconds * (1 - decode.interval.low))


def test_dispatch_and_kernel_still_make_the_time_of_the_steps(tmp_path: Path) -> None:
    before = read_results(make_results(tmp_path)).measured.collect()
    after = read_results(with_samples(tmp_path)).measured.collect()
    for phase in ("prefill", "decode"):
        parts = after[f"{phase}_dispatch_seconds"] + after[f"{phase}_kernel_seconds"]
        assert parts.to_list() == pytest.approx(before[f"{phase}_wall_seconds"].to_list())


def test_a_visit_whose_sample_failed_is_split_by_those_of_the_cells_others(tmp_path: Path) -> None:
    def fail(row: Row) -> bool:
        if row["stage"] == "sample" and row["round"] == 3:
            row |= {"status": 500, "error": "broke", "prefill": None, "decode": None}
        return True

    decode = baseline(edit_all(with_samples(make_results(tmp_path)), fail)).decode
    assert decode.index == pytest.approx(0.6)
    assert decode.samples is not None
    assert decode.samples.kernel == (ROUNDS - 1) * 60


def test_a_measured_request_with_samples_of_its_own_adds_them(tmp_path: Path) -> None:
    folder = with_samples(make_results(tmp_path))
    edit_rows(
        folder,
        lambda row: row["decode"].update(samples_in(0, 50, 0) if row["stage"] == "measure" else {}),
    )
    summary = baseline(folder)
    assert summary.decode.samples is not None
    assert summary.decode.samples.host == ROUNDS * 40 + summary.requests * 50


def test_without_sampled_requests_the_newest_samples_of_the_traffic_split_a_cell(tmp_path: Path) -> None:
    folder = make_results(tmp_path)
    edit_rows(folder, lambda row: row["decode"].update(samples_in(10 * row["round"], 20, 1, "traffic")))
    decode = baseline(folder).decode
    assert decode.samples == SampleCounts(kernel=10 * ROUNDS, host=20, system=1, unclassified=1)
    assert decode.index == pytest.approx(0.8)


def test_samples_of_the_traffic_count_for_nothing_beside_a_cells_own(tmp_path: Path) -> None:
    folder = with_samples(make_results(tmp_path))

    def traffic(row: Row) -> None:
        if row["stage"] != "sample":
            row["decode"] |= samples_in(999, 1, 0, "traffic")

    edit_rows(folder, traffic)
    assert baseline(folder).decode.index == pytest.approx(0.6)


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
    results = read_results(with_intervals(make_results(tmp_path)))
    written = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    measured = [row for row in written if row["stage"] == "measure"]
    dispatch = results.measured.collect()["dispatch_seconds"]
    assert dispatch.to_list() == [row["dispatch_seconds"] for row in measured]
    assert results.samples == {"prefill": {}, "decode": {}}


def test_totals_are_the_sums_of_the_phases_where_one_of_them_alone_was_sampled(tmp_path: Path) -> None:
    def of_decode_alone(row: Row) -> bool:
        if row["stage"] == "sample":
            row["prefill"] |= samples_in(0, 0, 0)
        return True

    folder = edit_all(with_samples(make_results(tmp_path)), of_decode_alone)
    found = read_results(folder).measured.collect()
    for part in ("dispatch", "kernel"):
        sums = found[f"prefill_{part}_seconds"] + found[f"decode_{part}_seconds"]
        assert found[f"{part}_seconds"].to_list() == pytest.approx(sums.to_list())


def row(name: str, low: float | None, high: float | None) -> dict[str, Any]:
    return {"name": f"{name}: eager", "low": low, "high": high, "verdict": "pass"}


KERNEL = "injected kernel time that arrives as kernel"
HOST = "injected host time that arrives as host"
RATES = "kernel share at 997 samples per second less that at none"
PASSED = [row(KERNEL, 0.96, 1.04), row(HOST, 0.95, 1.08), row(RATES, -0.02, 0.01)]


@pytest.fixture
def run(tmp_path: Path) -> SweepRun:
    return read_results(make_results(tmp_path)).run


def selftest_of(run: SweepRun, rows: list[dict[str, Any]], **changes: object) -> dict[str, Any]:
    alike = {name: run.engine.get(name) for name in ("torch", "model", "dtype", "threads")}
    return {**alike, "modes": run.plan.ladder_modes, "rows": rows, **changes}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([], PROVED),
        ([row(HOST, 0.83, 0.97)], (0.17, RATE)),
        ([row(KERNEL, 1.1, 1.25)], (0.25, RATE)),
        ([row(KERNEL, None, None)], (1.0, RATE)),
        ([row(RATES, -0.05, 0.02)], (CLASSES, 0.05)),
        ([row(RATES, 0.01, 0.08), row(HOST, 0.6, 0.7)], (0.4, 0.08)),
        ([row("instructions in kernels", 9.0, 9.0)], PROVED),
    ],
    ids=str,
)
def test_a_selftest_says_what_is_left_open_of_the_classes_and_of_the_rate(
    rows: list[dict[str, Any]], found: tuple[float, float], run: SweepRun
) -> None:
    assert left_open(selftest_of(run, [*PASSED, *rows]), run) == pytest.approx(found)


def test_what_no_selftest_of_the_same_kernels_bounds_is_left_open_twice(run: SweepRun) -> None:
    assert left_open(None, run) == UNPROVED
    assert left_open(selftest_of(run, PASSED, threads=9), run) == UNPROVED
    assert left_open(selftest_of(run, PASSED[:2]), run) == (CLASSES, UNPROVED.rate)
    assert left_open(selftest_of(run, PASSED[2:]), run) == (UNPROVED.classes, RATE)


def test_a_selftest_beside_the_sweep_widens_its_interval(tmp_path: Path) -> None:
    sweep, selftest = tmp_path / "sweep", tmp_path / "selftest"
    sweep.mkdir()
    selftest.mkdir()
    here = {"commit": "0123456789ab", "cpu": "a CPU", "device": "a CPU", "complete": True, "threads": 1}
    here |= {"dtype": "float32", "modes": list(CLEAR), "outcome": "failed", "detail": ""}
    here |= {"torch": "2.13.0", "model": "tiny"}
    rows = [*PASSED, row(HOST, 0.83, 0.97)]
    (selftest / "selftest.json").write_text(json.dumps(here | {"rows": rows}))
    found = baseline(with_samples(make_results(sweep))).decode.interval
    assert found is not None
    expected = kernel_share(ROUNDS * 60, ROUNDS * 40, bounds=LeftOpen(0.17, RATE))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
