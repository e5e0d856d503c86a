"""Prefill and decode apart: the kernel share, the bound and the crossover are decode's, with intervals."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.report.crossing import crossing
from loadtests.report.results import read_results
from loadtests.report.verdict import Findings
from service.statistics.boundedness import Crossover, CrossoverSpan
from tests.support.made_results import Row, edit_rows, make_results, set_split, with_intervals


def found(folder: Path) -> Findings:
    return Findings(read_results(folder))


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


def test_the_index_is_decodes_and_prefills_stands_beside(folder: Path) -> None:
    baseline = found(folder).main[0].baseline
    assert baseline.decode.index == pytest.approx(0.4)
    assert baseline.prefill.index == pytest.approx(0.9)


def test_the_interval_of_the_index_is_that_of_the_rows_dispatch(folder: Path) -> None:
    interval = found(folder).main[0].baseline.decode.interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((0.35, 0.45))


def test_a_cpu_has_headroom_and_no_bound(folder: Path) -> None:
    baseline = found(folder).main[0].baseline
    assert (baseline.decode.bound, baseline.prefill.bound) == (None, None)
    room = baseline.decode.headroom
    assert room is not None
    assert (room.value, room.low, room.high) == pytest.approx((1 / 0.4, 1 / 0.45, 1 / 0.35))


def test_a_gpu_has_a_bound_and_no_headroom(folder: Path) -> None:
    baseline = found(on_a_gpu(folder)).main[0].baseline
    assert (baseline.decode.bound, baseline.prefill.bound) == ("balanced", "kernel-bound")
    assert (baseline.decode.headroom, baseline.prefill.headroom) == (None, None)


def test_rounds_that_scatter_leave_the_bound_undecided(tmp_path: Path) -> None:
    edit_rows(
        make_results(tmp_path), lambda row: set_split(row, "decode", 0.3 + 0.4 * (row["round"] % 2), 0.0)
    )
    decode = found(on_a_gpu(tmp_path)).main[0].baseline.decode
    assert decode.bound == "undecided between balanced and kernel-bound"


def test_rows_of_an_estimate_without_an_interval_have_a_share_and_no_headroom(tmp_path: Path) -> None:
    decode = found(make_results(tmp_path)).main[0].baseline.decode
    assert decode.index is not None
    assert (decode.interval, decode.headroom) == (None, None)


def test_measured_dispatch_needs_no_interval_of_its_own(tmp_path: Path) -> None:
    decode = found(on_a_gpu(make_results(tmp_path))).main[0].baseline.decode
    assert decode.interval is not None
    assert decode.interval.high - decode.interval.low < 0.01
    assert decode.bound == "balanced"


def test_the_crossover_carries_the_interval_of_the_indices(tmp_path: Path) -> None:
    span = found(with_intervals(make_results(tmp_path), 0.05)).crossover
    assert {span.earliest.where, span.typical.where, span.latest.where} == {"at"}
    assert 1 < (span.earliest.batch or 0) < (span.typical.batch or 0) < (span.latest.batch or 0) < 16


def test_without_intervals_the_crossover_says_that_its_own_is_unknown(tmp_path: Path) -> None:
    findings = found(make_results(tmp_path))
    assert findings.crossover.typical.where == "at"
    assert "interval unknown" in crossing(findings.crossover, findings.estimated)


def at(batch: float) -> Crossover:
    return Crossover("at", batch)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (CrossoverSpan(at(4.5), at(3.8), at(5.6)), "at about batch 4.5 (interval: 3.8 to 5.6)"),
        (
            CrossoverSpan(at(2.4), Crossover("below", 1.0), at(5.6)),
            "at about batch 2.4 (interval: below the smallest batch to 5.6)",
        ),
        (
            CrossoverSpan(Crossover("above", 16.0), at(12.0), Crossover("above", 16.0)),
            "above batch 16, the largest here (interval: 12 to above the largest)",
        ),
        (
            CrossoverSpan(*[Crossover("below", 1.0)] * 3),
            "below batch 1, the smallest here, at both ends of the dispatch's interval",
        ),
    ],
)
def test_the_crossing_says_no_more_than_was_measured(span: CrossoverSpan, text: str) -> None:
    told = crossing(span, estimated=True)
    assert told == f"in decode, eager's kernels take as long as its dispatch {text}"


def test_faults_and_tokens_are_counted_per_cell(tmp_path: Path) -> None:
    def change(row: Row) -> None:
        row["prefill"]["minor_faults"] = 2600 if row["mode"] == "eager" else 0

    edit_rows(with_intervals(make_results(tmp_path)), change)
    verdict = found(tmp_path).main[0]
    assert verdict.baseline.prefill.minor_faults == 2600
    assert (verdict.baseline.padded_prompt_tokens, verdict.baseline.attended_tokens) == (16, 64)


def test_parts_outside_and_skew_make_the_latency_that_is_shown(tmp_path: Path) -> None:
    for summary in found(make_results(tmp_path, scatter=0.1)).summaries:
        parts = sum(value for value in summary.parts.values() if value is not None)
        shown = parts + (summary.outside_seconds or 0.0) - summary.skew_seconds
        assert shown == pytest.approx(summary.latency.value)
