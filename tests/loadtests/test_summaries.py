"""What is known of a cell: its phases, their split by samples, and when its compilations have paid back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from loadtests.report.findings import Findings
from loadtests.report.proof import left_open
from loadtests.report.results import read_results
from loadtests.report.summaries import NOTHING, Count, Summary, bucket_of, cost_of, pay_back
from loadtests.run.run_file import SweepRun
from service.records import SampleCounts
from service.statistics.boundedness import CLASSES, PROVED, RATE, UNPROVED, LeftOpen, dispatch_share
from service.statistics.choice import compare
from service.statistics.intervals import Interval
from tests.support.made_results import (
    CLEAR,
    Row,
    edit_rows,
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
    assert baseline.decode.index == pytest.approx(0.4)
    assert baseline.prefill.index == pytest.approx(0.9)
    interval = baseline.decode.interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((0.35, 0.45))
    assert (baseline.decode.bound, baseline.prefill.bound) == (None, None)
    room = baseline.decode.headroom
    assert room is not None
    assert (room.value, room.low, room.high) == pytest.approx((1 / 0.4, 1 / 0.45, 1 / 0.35))


def test_a_gpu_has_a_bound_and_no_headroom(folder: Path) -> None:
    baseline = found(on_a_gpu(folder)).main[0].baseline
    assert (baseline.decode.bound, baseline.prefill.bound) == ("balanced", "kernel-bound")
    assert (baseline.decode.headroom, baseline.prefill.headroom) == (None, None)


def test_rows_of_an_estimate_without_an_interval_have_a_share_no_headroom_and_no_span(tmp_path: Path) -> None:
    findings = found(make_results(tmp_path))
    decode, span = findings.main[0].baseline.decode, findings.crossover
    assert decode.index is not None
    assert (decode.interval, decode.headroom) == (None, None)
    assert (span.typical.where, span.earliest.where) == ("at", "unknown")


def test_parts_outside_and_skew_make_the_latency_that_is_shown(tmp_path: Path) -> None:
    for summary in found(make_results(tmp_path, scatter=0.1)).summaries:
        parts = sum(value for value in summary.parts.values() if value is not None)
        shown = parts + (summary.outside_seconds or 0.0) - summary.skew_seconds
        assert shown == pytest.approx(summary.latency.value)


# ---------------------------------------------------------------- samples


def baseline(folder: Path) -> Summary:
    return found(folder).main[0].baseline


def kernel_share(kernel: int, host: int, unclassified: int = 0, bounds: LeftOpen = UNPROVED) -> Interval:
    share = dispatch_share(kernel, host, unclassified, bounds)
    assert share is not None
    return Interval(1 - share.value, 1 - share.high, 1 - share.low, kernel + host)


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
    assert decode.wall_seconds is not None
    assert decode.dispatch_low_seconds == pytest.approx(decode.wall_seconds * (1 - decode.interval.high))
    assert decode.dispatch_high_seconds == pytest.approx(decode.wall_seconds * (1 - decode.interval.low))


def test_a_visit_whose_sample_failed_is_split_by_those_of_the_cells_others(tmp_path: Path) -> None:
    def fail(row: Row) -> None:
        if row["stage"] == "sample" and row["round"] == 3:
            row |= {"status": 500, "error": "broke", "prefill": None, "decode": None}

    edit_rows(with_samples(make_results(tmp_path)), fail)
    decode = baseline(tmp_path).decode
    assert decode.index == pytest.approx(0.6)
    assert decode.samples is not None
    assert decode.samples.kernel == (ROUNDS - 1) * 60


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


def test_totals_are_the_sums_of_the_phases_where_one_of_them_alone_was_sampled(tmp_path: Path) -> None:
    def of_decode_alone(row: Row) -> None:
        if row["stage"] == "sample":
            row["prefill"] |= samples_in(0, 0, 0)

    edit_rows(with_samples(make_results(tmp_path)), of_decode_alone)
    found = read_results(tmp_path).measured.collect()
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
    assert cost is not None
    assert (cost.seconds, cost.cold_seconds, cost.cache) == (4.0, 50.0, "warm")
    back = pay_back("inference_mode", compare(rounds(0.375), rounds(0.125)), 0.375, 0.125, cost)
    assert (back.requests, back.cold_requests) == (Count(16, 16, 16), Count(200, 200, 200))
    cold = cost_of({"compilations": [compilation(cold=True, seconds=11.0, cold_seconds=None)]}, 4)
    assert cold is not None
    assert (cold.cache, cold.seconds, cold.cold_seconds) == ("cold", 11.0, 11.0)
    never = cost_of({"compilations": [compilation(), compilation(phase="prefill", cold_seconds=None)]}, 4)
    assert never is not None
    assert never.cold_seconds is None
    back = pay_back("inference_mode", compare(rounds(0.3), rounds(0.1)), 0.3, 0.1, never)
    assert isinstance(back.requests, Count)
    assert (back.requests.typical, back.cold_requests) == (5, "unknown")
    assert cost_of({"compile_seconds": [12.0, 11.0]}, 4) is None


def test_the_ends_of_a_payback_are_those_of_the_speedup() -> None:
    comparison = compare(rounds(0.5), rounds(0.25, 0.1))
    back = pay_back("inference_mode", comparison, 0.5, 0.25, cost_of({"compilations": [compilation()]}, 4))
    low, high = (0.5 / (0.5 * (1 - 1 / end)) for end in (comparison.speedup.high, comparison.speedup.low))
    assert isinstance(back.requests, Count)
    assert (back.requests.least, back.requests.typical, back.requests.most) == (
        math.ceil(low), 2, math.ceil(high),
    )  # fmt: skip
    assert back.requests.most > back.requests.least


@pytest.mark.parametrize(
    ("own", "scatter", "found"),
    [
        *((value, 0.001, "never") for value in (0.4, 0.1001, 0.1, 0.099)),
        (0.1, 0.2, "undecided"),
    ],
)
def test_what_is_no_faster_by_over_two_percent_never_pays_back_and_what_is_not_told_apart_is_undecided(
    own: float, scatter: float, found: str
) -> None:
    cost = cost_of({"compilations": [compilation()]}, 4)
    comparison = compare(rounds(0.1), rounds(own, scatter))
    assert pay_back("inference_mode", comparison, 0.1, own, cost).requests == found


def test_the_reference_is_the_fastest_mode_without_a_compiler_not_eager(tmp_path: Path) -> None:
    make_results(tmp_path, CLEAR | {"no_grad": 0.65, "inference_mode": 0.7})
    unknown = found(tmp_path).main[0].of("compiled").payback
    assert (unknown.requests, unknown.cold_requests) == ("unknown", "unknown")
    with_compilations(tmp_path, seconds=0.6, cold_seconds=12.0)
    payback = found(tmp_path).main[0].of("compiled").payback
    saved = (0.65 - 0.4) * 0.02
    assert payback.reference == "no_grad"
    assert isinstance(payback.requests, Count)
    assert isinstance(payback.cold_requests, Count)
    assert payback.requests.typical == pytest.approx(1.2 / saved, rel=0.1)
    assert payback.cold_requests.typical == pytest.approx(24 / saved, rel=0.1)
    assert found(tmp_path).main[0].of("no_grad").payback == NOTHING
    assert found(tmp_path).main[0].baseline.payback == NOTHING
