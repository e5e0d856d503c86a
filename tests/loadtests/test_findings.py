"""What is known of a cell and said of it: phases, samples, paybacks, ties, and what a selftest proves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.report.findings import BOUNDS, NOT_PROVED, SPLIT_ROWS, Findings, Proof, left_open
from loadtests.report.results import read_results
from loadtests.report.summaries import NOTHING, Count, Summary, bucket_of, cost_of, pay_back
from loadtests.report.wording import saved, trust, why
from loadtests.run.run_file import SERIES_FILE, SweepRun
from service.proof.over_http import judge_served
from service.proof.worker import CHECKS
from service.records import SampleCounts
from service.statistics.boundedness import CLASSES, PROVED, RATE, UNPROVED, dispatch_share
from service.statistics.choice import compare
from service.statistics.intervals import Interval
from tests.proof.samples import HONEST
from tests.support.made_plans import make_report
from tests.support.made_results import (
    CLEAR,
    Row,
    edit_rows,
    edit_run,
    make_results,
    samples_in,
    set_split,
    with_compilations,
    with_intervals,
    with_samples,
)

ROUNDS = 8


def found(folder: Path) -> Findings:
    return Findings(read_results(folder))


def test_every_mode_is_compared_with_the_best_one_without_a_compiler(tmp_path: Path) -> None:
    verdict = found(make_results(tmp_path)).main[0]
    assert verdict.of("inference_mode").against_plain is None
    compared = {s.cell.mode: s.against_plain for s in verdict.modes if s.against_plain}
    assert set(compared) == set(CLEAR) - {"inference_mode"}
    assert compared["compiled"].speedup.value == pytest.approx(0.7 / 0.4, rel=0.05)
    assert (compared["compiled"].word, compared["eager"].word) == ("faster", "slower")


# ---------------------------------------------------------------- prefill and decode apart


def on_a_gpu(folder: Path) -> Path:
    """Its dispatch was measured."""
    edit_rows(folder, lambda row: row["sources"].update(dispatch="measured"))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Decode at an index of 0.4 ± 0.05, prefill at 0.9 ± 0.02, in every mode and batch."""

    def change(row: Row) -> None:
        set_split(row, "decode", 0.4, 0.05)
        set_split(row, "prefill", 0.9, 0.02)

    edit_rows(make_results(tmp_path), change)
    return tmp_path


def test_the_index_is_decodes_with_the_interval_of_the_rows_and_a_cpu_has_headroom_and_no_bound(
    folder: Path,
) -> None:
    baseline = found(folder).main[0].baseline
    interval, room = baseline.main.interval, baseline.main.headroom
    assert (baseline.main.index, interval.low, interval.high) == pytest.approx((0.4, 0.35, 0.45))
    assert baseline.phase("prefill").index == pytest.approx(0.9)
    assert (baseline.main.bound, baseline.phase("prefill").bound) == (None, None)
    assert (room.value, room.low, room.high) == pytest.approx((1 / 0.4, 1 / 0.45, 1 / 0.35))


def test_a_gpu_has_a_bound_and_no_headroom(folder: Path) -> None:
    baseline = found(on_a_gpu(folder)).main[0].baseline
    assert (baseline.main.bound, baseline.phase("prefill").bound) == ("balanced", "kernel-bound")
    assert (baseline.main.headroom, baseline.phase("prefill").headroom) == (None, None)


def test_parts_outside_and_skew_make_the_latency_that_is_shown(tmp_path: Path) -> None:
    for summary in found(make_results(tmp_path, scatter=0.1)).summaries:
        parts = sum(value for value in summary.parts.values() if value is not None)
        shown = parts + (summary.outside_seconds or 0.0) - summary.skew_seconds
        assert shown == pytest.approx(summary.latency.value)


# ---------------------------------------------------------------- samples


def baseline(folder: Path) -> Summary:
    return found(folder).main[0].baseline


def test_samples_of_all_rounds_are_pooled_and_take_the_place_of_the_rows_own_split(tmp_path: Path) -> None:
    def growing(row: Row) -> tuple[int, int, int]:
        return 100 * row["round"], 100, 0

    decode = baseline(with_samples(with_intervals(make_results(tmp_path), 0.4), growing)).main
    assert decode.samples == SampleCounts(kernel=3600, host=800, system=ROUNDS, unclassified=0)
    assert decode.index == pytest.approx(36 / 44)
    share = dispatch_share(decode.samples, UNPROVED)
    assert decode.interval == Interval(1 - share.value, 1 - share.high, 1 - share.low, 4400)


def test_a_cell_whose_samples_are_mostly_of_no_class_has_no_split_and_no_share(tmp_path: Path) -> None:
    folder = with_samples(with_intervals(make_results(tmp_path), 0.4), lambda _: (60, 40, 900))
    summary = baseline(folder)
    decode = summary.main
    assert decode.samples is not None
    assert decode.samples.unclassified == 900 * ROUNDS
    assert decode.index is decode.interval is decode.dispatch_seconds is decode.kernel_seconds is None
    assert decode.dispatch_low_seconds is decode.dispatch_high_seconds is decode.headroom is None
    assert summary.parts["dispatch"] is None
    make_report(folder)


def test_without_sampled_requests_the_newest_samples_of_the_traffic_split_a_cell(tmp_path: Path) -> None:
    folder = make_results(tmp_path)
    edit_rows(folder, lambda row: row["decode"].update(samples_in(10 * row["round"], 20, 1, "traffic")))
    decode = baseline(folder).main
    assert decode.samples == SampleCounts(kernel=10 * ROUNDS, host=20, system=1, unclassified=1)
    assert decode.index == pytest.approx(0.8)


def test_requests_that_were_merged_keep_the_split_of_the_engine(tmp_path: Path) -> None:
    folder = with_samples(with_intervals(make_results(tmp_path)))
    edit_rows(folder, lambda row: row.update(sources=row["sources"] | {"steps": "shared"}))
    decode = baseline(folder).main
    assert decode.index != pytest.approx(0.6, abs=0.05)
    assert decode.samples is None


def test_a_sampled_request_is_in_no_statistic_of_latency(tmp_path: Path) -> None:
    before = baseline(make_results(tmp_path))
    after = baseline(with_samples(tmp_path))
    assert (after.latency, after.requests, after.throughput) == (
        before.latency, before.requests, before.throughput,
    )  # fmt: skip


def row(name: str, low: float | None, high: float | None) -> dict[str, Any]:
    return {"name": f"{name}: eager", "low": low, "high": high, "verdict": "pass"}


KERNEL = "injected kernel time that arrives as kernel"
HOST = "injected host time that arrives as host"
RATES = "kernel share at 997 samples per second less that at none"
PASSED = [row(KERNEL, 0.96, 1.04), row(HOST, 0.95, 1.08), row(RATES, -0.02, 0.01)]


@pytest.fixture
def run(tmp_path: Path) -> SweepRun:
    return read_results(make_results(tmp_path)).run


@pytest.mark.parametrize(
    ("selftest", "found"),
    [
        ({"rows": PASSED}, PROVED),
        ({"rows": [*PASSED, row(HOST, 0.83, 0.97)]}, (0.17, RATE)),
        ({"rows": [*PASSED, row(KERNEL, None, None)]}, (1.0, RATE)),
        ({"rows": [*PASSED, row(RATES, -0.05, 0.02)]}, (CLASSES, 0.05)),
        ({"rows": [*PASSED, row(RATES, 0.01, 0.08), row(HOST, 0.6, 0.7)]}, (0.4, 0.08)),
        ({"rows": [*PASSED, row("instructions in kernels", 9.0, 9.0)]}, PROVED),
        ({"rows": PASSED[:2]}, (CLASSES, UNPROVED.rate)),
        ({"rows": PASSED, "threads": 9}, UNPROVED),
    ],
    ids=str,
)
def test_a_selftest_of_the_same_kernels_says_what_is_left_open_of_the_classes_and_of_the_rate(
    selftest: dict[str, Any], found: tuple[float, float], run: SweepRun
) -> None:
    assert left_open(SELFTEST | selftest, run) == pytest.approx(found)
    assert left_open(None, run) == UNPROVED


# ---------------------------------------------------------------- payback


def compilation(**changes: Any) -> dict[str, Any]:
    base = {"phase": "decode", "batch": 4, "seconds": 0.5, "cold": False, "cold_seconds": 10.0}
    return base | changes


def rounds(value: float, scatter: float = 0.001) -> dict[int, float]:
    return {number: value * (1 + scatter * (-1) ** number) for number in range(1, 9)}


def test_what_a_buckets_compilations_cost_is_paid_back_by_what_each_request_saves() -> None:
    """Only this bucket's count, in the next larger one; and of old runs no second model's."""
    assert [bucket_of(size, [1, 4, 16]) for size in (1, 3, 4, 5, 17)] == [1, 4, 4, 16, 17]
    own = [
        compilation(seconds=1.0, cold_seconds=20.0),
        compilation(phase="prefill", seconds=3.0, cold_seconds=30.0),
    ]
    others = [compilation(twin=True, seconds=50.0), compilation(batch=16, seconds=50.0)]
    cost = cost_of({"compilations": own + others}, 4)
    assert (cost.seconds, cost.cold_seconds, cost.cache) == (4.0, 50.0, "warm")
    assert (cost.all_seconds, cost.all_cold_seconds) == (54.0, 60.0)
    back = pay_back("inference_mode", compare(rounds(0.375), rounds(0.125)), 0.375, 0.125, cost)
    assert (back.requests, back.cold_requests) == (Count(16, 16, 16), Count(200, 200, 200))
    assert (back.all_requests, back.all_cold_requests) == (Count(216, 216, 216), Count(240, 240, 240))
    cold = cost_of({"compilations": [compilation(cold=True, seconds=11.0, cold_seconds=None)]}, 4)
    assert (cold.cache, cold.seconds, cold.cold_seconds) == ("cold", 11.0, 11.0)
    never = cost_of({"compilations": [compilation(), compilation(phase="prefill", cold_seconds=None)]}, 4)
    assert never.cold_seconds is None
    back = pay_back("inference_mode", compare(rounds(0.3), rounds(0.1)), 0.3, 0.1, never)
    assert (back.requests.typical, back.cold_requests) == (5, "unknown")
    assert cost_of({"compile_seconds": [12.0, 11.0]}, 4) is None


@pytest.mark.parametrize(
    ("own", "scatter", "found"),
    [*((value, 0.001, "never") for value in (0.4, 0.1001, 0.1, 0.099)), (0.1, 0.2, "undecided")],
)
def test_what_is_no_faster_by_over_two_percent_never_pays_back_and_what_is_not_told_apart_is_undecided(
    own: float, scatter: float, found: str
) -> None:
    cost = cost_of({"compilations": [compilation()]}, 4)
    comparison = compare(rounds(0.1), rounds(own, scatter))
    assert pay_back("inference_mode", comparison, 0.1, own, cost).requests == found


def test_what_is_compiled_is_paid_back_against_inference_mode(tmp_path: Path) -> None:
    make_results(tmp_path, CLEAR | {"no_grad": 0.65, "inference_mode": 0.7})
    unknown = found(tmp_path).main[0].of("compiled").payback
    assert (unknown.requests, unknown.cold_requests) == ("unknown", "unknown")
    with_compilations(tmp_path, seconds=0.6, cold_seconds=12.0)
    payback = found(tmp_path).main[0].of("compiled").payback
    saved = (0.7 - 0.4) * 0.02
    assert payback.reference == "inference_mode"
    assert payback.cost.all_seconds == pytest.approx(6 * 0.6)
    assert payback.requests.typical == pytest.approx(1.2 / saved, rel=0.1)
    assert payback.all_requests.typical == pytest.approx(3.6 / saved, rel=0.1)
    assert payback.cold_requests.typical == pytest.approx(24 / saved, rel=0.1)
    assert found(tmp_path).main[0].of("no_grad").payback == NOTHING
    assert found(tmp_path).main[0].baseline.payback == NOTHING


# ---------------------------------------------------------------- in words


def split(folder: Path, eager_index: float, reach: float = 0.02, dispatch: str = "sampled") -> None:
    """Decode at this kernel share; compiled halves inference_mode's kernel time and its dispatch.

    `dispatch` "measured": as on a GPU.
    """

    def change(row: Row) -> None:
        row["sources"]["dispatch"] = dispatch
        for phase in ("prefill", "decode"):
            set_split(row, phase, eager_index, reach)
        if row["mode"] in ("inference_mode", "compiled"):
            share = 1.0 if row["mode"] == "inference_mode" else 0.5
            row["kernel_seconds"], row["dispatch_seconds"] = 0.012 * share, 0.004 * share / 2

    edit_rows(folder, change)


@pytest.mark.parametrize(
    ("eager_index", "reach", "unresolved"), [(0.15, 0.02, False), (0.7, 0.6, True), (0.15, 0.34, True)]
)
def test_what_is_saved_is_told_by_its_parts_and_kernel_times_that_the_split_does_not_resolve_as_such(
    tmp_path: Path, eager_index: float, reach: float, unresolved: bool
) -> None:
    split(make_results(tmp_path), eager_index, reach)
    findings = found(tmp_path)
    in_all, dispatch, kernel = saved(findings.main[0])
    assert in_all.endswith(" ms in all")
    assert dispatch.startswith("2.00 → 1.00 ms dispatch")
    assert kernel.startswith("12.0 → 6.00 ms kernel")
    assert " ms saved per request are dispatch" in why(findings)
    assert ("whether kernels got faster too is not resolved" in why(findings)) == unresolved


@pytest.mark.parametrize(
    ("before", "after", "reach", "said"),
    [
        ((9, 5), (1, 7), 0.02, "dispatch takes 8.00 ms less, kernels 2.00 ms more."),
        ((2, 12), (3, 5), 0.02, "dispatch takes 1.00 ms more, kernels 7.00 ms less."),
        ((2, 12), (3, 5), 0.6, "dispatch takes 1.00 ms more; whether kernels got faster is not resolved."),
    ],
)
def test_a_part_that_grew_or_shrank_by_more_than_what_is_saved_is_no_share_of_it(
    tmp_path: Path, before: tuple[int, int], after: tuple[int, int], reach: float, said: str
) -> None:
    """`before` and `after`: milliseconds of dispatch and of kernels in inference_mode and in compiled."""
    split(make_results(tmp_path), 0.15 if reach < 0.1 else 0.7, reach)
    parts = {"inference_mode": before, "compiled": after}

    def change(row: Row) -> None:
        if row["mode"] in parts:
            row["dispatch_seconds"], row["kernel_seconds"] = (one / 1e3 for one in parts[row["mode"]])

    edit_rows(tmp_path, change)
    assert f"ms are saved per request: {said}" in why(found(tmp_path))


# ---------------------------------------------------------------- selftests

SELFTEST: dict[str, Any] = {
    "commit": "0123456789ab", "cpu": "a CPU", "device": "a CPU", "created": "2026-01-02T00:00:00Z",
    "complete": True, "outcome": "passed", "detail": "9 of 9 rows passed",
    "dtype": "float32", "threads": 1, "torch": "2.13.0", "model": "tiny", "modes": list(CLEAR),
    "rows": [
        {"name": f"{start}: a row", "verdict": "pass", "low": right, "high": right}
        for start in SPLIT_ROWS
        for right in [next((bound.should for bound in BOUNDS if start in bound.rows), 0.0)]
    ],
}  # fmt: skip


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return with_intervals(make_results(tmp_path / "sweep"), 0.1)


def write_selftest(sweep: Path, **changes: Any) -> None:
    beside = sweep.parent / "selftest"
    beside.mkdir(exist_ok=True)
    (beside / "selftest.json").write_text(json.dumps(SELFTEST | changes))


def proof(sweep: Path) -> Proof:
    return found(sweep).proof


def test_the_selftest_beside_a_series_is_that_of_each_start_which_says_that_it_is_one(sweep: Path) -> None:
    start = sweep.parent / "series" / "tiny-1"
    start.parent.mkdir()
    sweep.rename(start)
    write_selftest(start.parent)
    assert found(start).selftest is None
    (start.parent / SERIES_FILE).touch()
    assert found(start).selftest is not None
    assert all(text in trust(found(start)) for text in ("in one start of the service:", "--preset standard"))


def test_what_the_selftest_leaves_open_is_named_where_the_interval_is_defined(sweep: Path) -> None:
    rows = [*SELFTEST["rows"], {"name": BOUNDS[0].rows[0], "verdict": "fail", "low": 0.85, "high": 1.0}]
    write_selftest(sweep, rows=rows)
    make_report(with_samples(sweep))
    page = (sweep / "report.html").read_text()
    assert "only this error gets smaller with more rounds or new tokens." in page
    assert "Classes: 15 % misclassification of samples. Rate: sampling shifts the share by 3 %." in page


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        ([], "passed"),
        ([{"name": "time of a /metrics scrape under load", "verdict": "fail"}], "failed"),
        ([{"name": "step time, concurrency 8 / 1", "verdict": "undecided"}], "undecided"),
    ],
)
def test_a_selftest_of_this_machine_and_commit_proves_the_split_whatever_else_failed(
    sweep: Path, rows: list[dict[str, str]], outcome: str
) -> None:
    edit_run(sweep, lambda run: run.environment.update(cpu_features="avx2, 01234567"))
    edit_run(sweep, lambda run: run.engine.update(linears={"layout": "aten", "reason": "as measured"}))
    alike = {"cpu_features": "avx2, 01234567", "linears": "aten", "modes": [*CLEAR, "aot-inductor"]}
    write_selftest(sweep, rows=[*SELFTEST["rows"], *rows], outcome=outcome, **alike)
    told = proof(sweep)
    assert (told.proved, told.missing) == (True, None)
    assert told.selftest.lower() == f"{outcome}: 9 of 9 rows passed"
    make_report(sweep)
    assert NOT_PROVED not in (sweep / "report.md").read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu": "another"},
        {"cpu_features": "avx2, avx512f, 76543210"},
        {"linears": "transposed"},
        {"commit": "another"},
        {"complete": False},
        {"dtype": "bfloat16"},
        {"rows": [*SELFTEST["rows"], {"name": "plain-kernels", "verdict": "fail"}]},
        {"modes": ["eager"]},
        {"rows": []},
        {"rows": [row for row in SELFTEST["rows"] if not row["name"].startswith(BOUNDS[1].rows)]},
        {"rows": [*SELFTEST["rows"], {"name": f"{SPLIT_ROWS[0]}: another", "verdict": "undecided"}]},
    ],
    ids=str,
)
def test_a_selftest_of_something_else_or_without_a_word_on_the_split_does_not(
    sweep: Path, changes: dict[str, Any]
) -> None:
    edit_run(sweep, lambda run: run.environment.update(cpu_features="avx2, 01234567"))
    edit_run(sweep, lambda run: run.engine.update(linears={"layout": "aten", "reason": "as measured"}))
    write_selftest(sweep, **{"cpu_features": "avx2, 01234567", "linears": "aten"} | changes)
    assert proof(sweep).proved is False


def test_rows_about_the_split_are_called_as_the_selftest_calls_them() -> None:
    names = {row.name for name, check in CHECKS.items() for row in check.judge(HONEST[name])}
    names |= {row.name for row in judge_served(HONEST["served-samples"])}
    assert all(any(name.startswith(start) for name in names) for start in SPLIT_ROWS)


def test_of_several_selftests_the_newest_of_a_build_without_changes_is_taken(sweep: Path) -> None:
    write_selftest(sweep, outcome="failed", created="2026-01-03T00:00:00Z")
    older = sweep.parent / "selftest-of-before"
    older.mkdir()
    (older / "selftest.json").write_text(json.dumps(SELFTEST))
    assert proof(sweep).selftest == "FAILED: 9 of 9 rows passed"
    edit_run(sweep, lambda run: run.environment.update(dirty=True))
    assert proof(sweep).selftest == "not run on this machine and commit (launchbound selftest)"
    assert proof(sweep).proved is False
