"""Payback counts a mode's own compilations of one bucket, against the best mode without a compiler."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from loadtests.report.explained import paid_back
from loadtests.report.payback import NOTHING, REMEDY, Count, bucket_of, cost_of, pay_back
from loadtests.report.results import read_results
from loadtests.report.summaries import Summary
from loadtests.report.verdict import Findings
from service.statistics.choice import compare
from tests.support.made_results import CLEAR, edit_run, make_results, with_compilations


def compilation(**changes: Any) -> dict[str, Any]:
    base = {"phase": "decode", "batch": 4, "seconds": 0.5, "cold": False, "cold_seconds": 10.0}
    return base | changes


def rounds(value: float) -> dict[int, float]:
    return {number: value * (1 + 0.001 * (-1) ** number) for number in range(1, 9)}


def test_only_this_buckets_compilations_count_and_of_old_runs_no_second_models() -> None:
    own = [compilation(), compilation(phase="prefill", seconds=0.7, cold_seconds=14.0)]
    others = [compilation(twin=True, seconds=50.0), compilation(batch=16, seconds=50.0)]
    cost = cost_of({"compilations": own + others}, 4)
    assert cost is not None
    assert (cost.seconds, cost.cold_seconds, cost.cache) == (1.2, 24.0, "warm")


def test_a_cold_start_is_its_own_cold_cost() -> None:
    cost = cost_of({"compilations": [compilation(cold=True, seconds=11.0, cold_seconds=None)]}, 4)
    assert cost is not None
    assert (cost.cache, cost.seconds, cost.cold_seconds) == ("cold", 11.0, 11.0)


def test_a_partly_filled_cache_is_called_that() -> None:
    cost = cost_of({"compilations": [compilation(), compilation(phase="prefill", cold=True)]}, 4)
    assert cost is not None
    assert cost.cache == "partly warm"


def test_a_cold_cost_that_was_never_seen_is_unknown() -> None:
    cost = cost_of({"compilations": [compilation(), compilation(phase="prefill", cold_seconds=None)]}, 4)
    assert cost is not None
    assert cost.cold_seconds is None
    back = pay_back("inference_mode", compare(rounds(0.3), rounds(0.1)), 0.3, 0.1, cost)
    assert isinstance(back.requests, Count)
    assert (back.requests.typical, back.cold_requests) == (5, "unknown")


def test_a_run_without_single_compilations_has_no_known_cost() -> None:
    assert cost_of({"compile_seconds": [12.0, 11.0]}, 4) is None


def test_requests_are_the_cost_over_what_each_saves() -> None:
    cost = cost_of({"compilations": [compilation(seconds=4.0, cold_seconds=50.0)]}, 4)
    back = pay_back("inference_mode", compare(rounds(0.375), rounds(0.125)), 0.375, 0.125, cost)
    assert (back.requests, back.cold_requests) == (Count(16, 16, 16), Count(200, 200, 200))


def test_the_ends_of_a_payback_are_those_of_the_speedup() -> None:
    own = {number: 0.25 * (1 + 0.1 * (-1) ** number) for number in range(1, 9)}
    comparison = compare(rounds(0.5), own)
    back = pay_back("inference_mode", comparison, 0.5, 0.25, cost_of({"compilations": [compilation()]}, 4))
    low, high = (0.5 / (0.5 * (1 - 1 / end)) for end in (comparison.speedup.high, comparison.speedup.low))
    assert isinstance(back.requests, Count)
    assert (back.requests.least, back.requests.typical, back.requests.most) == (
        math.ceil(low), 2, math.ceil(high),
    )  # fmt: skip
    assert back.requests.most > back.requests.least


@pytest.mark.parametrize("own", [0.4, 0.1001, 0.1, 0.099])
def test_a_mode_that_is_slower_or_equal_within_two_percent_never_pays_back(own: float) -> None:
    cost = cost_of({"compilations": [compilation()]}, 4)
    assert pay_back("inference_mode", compare(rounds(0.1), rounds(own)), 0.1, own, cost).requests == "never"


def test_a_mode_that_cannot_be_told_from_the_reference_leaves_payback_undecided() -> None:
    scattered = {number: 0.1 * (1 + 0.2 * (-1) ** number) for number in range(1, 9)}
    cost = cost_of({"compilations": [compilation()]}, 4)
    assert pay_back("eager", compare(rounds(0.1), scattered), 0.1, 0.1, cost).requests == "undecided"


def test_a_batch_runs_in_the_next_larger_bucket() -> None:
    assert [bucket_of(size, [1, 4, 16]) for size in (1, 3, 4, 5, 17)] == [1, 4, 4, 16, 17]


def shipped(folder: Path) -> Summary:
    return Findings(read_results(folder)).main[0].of("compiled")


def test_the_reference_is_the_fastest_mode_without_a_compiler_not_eager(tmp_path: Path) -> None:
    relative = CLEAR | {"no_grad": 0.65, "inference_mode": 0.7}
    summary = shipped(with_compilations(make_results(tmp_path, relative), seconds=0.6, cold_seconds=12.0))
    saved = (0.65 - 0.4) * 0.02
    assert summary.payback.reference == "no_grad"
    assert isinstance(summary.payback.requests, Count)
    assert isinstance(summary.payback.cold_requests, Count)
    assert summary.payback.requests.typical == pytest.approx(1.2 / saved, rel=0.1)
    assert summary.payback.cold_requests.typical == pytest.approx(24 / saved, rel=0.1)
    assert "from a warm cache (1.20 s) and" in paid_back(summary)
    assert "against no_grad, the fastest mode without a compiler" in paid_back(summary)


def test_an_unknown_cold_cost_is_said_with_the_remedy(tmp_path: Path) -> None:
    summary = shipped(with_compilations(make_results(tmp_path), cold_seconds=None))
    assert f"an unknown number from an empty cache ({REMEDY})" in paid_back(summary)


def test_an_old_folder_says_that_payback_is_unknown(tmp_path: Path) -> None:
    summary = shipped(make_results(tmp_path))
    assert (summary.payback.requests, summary.payback.cold_requests) == ("unknown", "unknown")
    assert REMEDY in paid_back(summary)


def test_what_compiles_nothing_has_nothing_to_pay_back(tmp_path: Path) -> None:
    findings = Findings(read_results(with_compilations(make_results(tmp_path))))
    assert findings.main[0].of("no_grad").payback == NOTHING
    assert findings.main[0].baseline.payback == NOTHING


def test_a_folder_in_which_everything_compiles_has_no_reference(tmp_path: Path) -> None:
    def compile_all(run: Any) -> None:
        for mode in run.modes:
            mode["compilations"] = [compilation(batch=1)]

    folder = make_results(tmp_path)
    edit_run(folder, compile_all)
    assert shipped(folder).payback.requests == "unknown"
