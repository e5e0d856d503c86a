"""The answer in words: effective modes first, ties with their price, and what is saved, and headroom."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.report.explained import headroom, shares, what_is_saved
from loadtests.report.results import read_results
from loadtests.report.verdict import Findings
from loadtests.report.wording import headline, tie
from tests.support.made_results import ALIKE, CLEAR, Row, edit_rows, make_results, set_split, with_intervals


def found(folder: Path) -> Findings:
    return Findings(read_results(folder))


def test_the_first_words_are_the_effective_mode_and_whose_place_it_takes(tmp_path: Path) -> None:
    text = headline(found(make_results(tmp_path, CLEAR | {"reduce-overhead": 0.3})))
    assert text.startswith(
        "compiled-cpp, the CPU's reduce-overhead, is the mode to ship at batch 1, 4 and 16 (3"
    )


def test_a_mode_that_is_what_it_is_called_comes_first(tmp_path: Path) -> None:
    assert headline(found(make_results(tmp_path))).startswith(
        "compiled is the mode to ship at batch 1, 4 and 16"
    )


def test_a_tie_names_both_and_the_most_that_the_simpler_gives_up(tmp_path: Path) -> None:
    findings = found(
        make_results(tmp_path, CLEAR | {"compiled": 0.4, "reduce-overhead": 0.3999}, scatter=0.05)
    )
    text = headline(findings)
    assert text.startswith("compiled, tied with compiled-cpp, is the mode to ship")
    told = {verdict.batch_size: tie(verdict, findings.confidence) or "" for verdict in findings.main}
    assert all(line.startswith("compiled and compiled-cpp tie at batch") for line in told.values())
    prices = [v for v in findings.main if v.choice and v.choice.given_up]
    assert prices
    for verdict in prices:
        assert (
            "shipping compiled, the simplest of them that beats eager, gives up" in told[verdict.batch_size]
        )


def test_what_a_tie_gives_up_at_most_is_said_where_the_fastest_ships_too(tmp_path: Path) -> None:
    made = make_results(tmp_path, CLEAR | {"compiled": 0.4, "reduce-overhead": 0.401}, scatter=0.05)
    findings = found(made)
    fastest = [v for v in findings.main if v.choice and v.choice.tied and v.choice.given_up is None]
    assert fastest
    for verdict in fastest:
        assert "is the fastest here, and another may be faster by at most" in (
            tie(verdict, findings.confidence) or ""
        )
        assert verdict.choice is not None
        assert f"{100 * ((verdict.choice.at_most or 0) - 1):.1f} %" in headline(findings)
    assert "; by 98.3 % intervals it gives up at most" in headline(findings)


def test_a_tie_within_two_percent_is_called_equal(tmp_path: Path) -> None:
    close = CLEAR | {"compiled": 0.4, "reduce-overhead": 0.399}
    findings = found(make_results(tmp_path, close, scatter=0.0001))
    assert "within what counts as equal" in (tie(findings.main[0], findings.confidence) or "")


def test_without_a_detectable_gain_eager_stays(tmp_path: Path) -> None:
    findings = found(make_results(tmp_path, ALIKE, scatter=0.05))
    assert findings.main[0].choice is not None
    assert headline(findings).startswith("eager, tied with ")
    assert "stays at batch" in headline(findings)


def split(folder: Path, eager_index: float = 0.8, reach: float = 0.02, dispatch: str = "sampled") -> None:
    """Eager's decode at this kernel share; compiled halves the kernel time and its dispatch.

    `dispatch` "measured": as on a GPU.
    """

    def change(row: Row) -> None:
        row["sources"]["dispatch"] = dispatch
        for phase in ("prefill", "decode"):
            set_split(row, phase, eager_index, reach)
        if row["mode"] in ("eager", "compiled"):
            share = 1.0 if row["mode"] == "eager" else 0.5
            row["kernel_seconds"], row["dispatch_seconds"] = 0.012 * share, 0.004 * share / 2
        row["prefill"]["minor_faults"] = 1300 if row["mode"] == "eager" else 0
        row["decode"]["minor_faults"] = 0

    edit_rows(folder, change)


def test_a_large_gain_beside_kernel_bound_is_explained_from_the_parts(tmp_path: Path) -> None:
    split(make_results(tmp_path), dispatch="measured")
    findings = found(tmp_path)
    told = what_is_saved(findings.main[0]) or ""
    assert told.startswith("eager's decode is kernel-bound, and compiled is still 2.5")
    assert "6.00 ms come from kernel time (12.0 → 6.00 ms) and" in told
    assert "1.00 ms come from dispatch (2.00 → 1.00 ms)" in told
    assert "1,300 page faults fewer are a part of the dispatch" in told


def test_a_difference_of_kernel_times_that_the_split_does_not_resolve_has_no_cause(tmp_path: Path) -> None:
    split(make_results(tmp_path), eager_index=0.7, reach=0.6)
    findings = found(tmp_path)
    told = what_is_saved(findings.main[0]) or ""
    assert "6.00 ms), a difference that the interval of the split does not resolve;" in told


def test_on_a_cpu_dispatch_is_first_and_no_class_is_named(tmp_path: Path) -> None:
    split(make_results(tmp_path), eager_index=0.15)
    findings = found(tmp_path)
    told = what_is_saved(findings.main[0]) or ""
    assert told.startswith("Of the ")
    assert "that a request saves on average, 1.00 ms come from dispatch (2.00 → 1.00 ms)" in told
    assert "and 6.00 ms come from kernel time (12.0 → 6.00 ms);" in told
    assert "1,300 page faults fewer are a part of both" in told
    assert "bound" not in told


def test_a_difference_that_the_split_does_not_resolve_is_called_that_where_the_gain_is_no_surprise_too(
    tmp_path: Path,
) -> None:
    split(make_results(tmp_path), eager_index=0.15, reach=0.34)
    told = what_is_saved(found(tmp_path).main[0]) or ""
    assert told.startswith("Of the ")
    assert "6.00 ms), a difference that the interval of the split does not resolve;" in told


def test_the_page_faults_of_one_request_are_no_reason_for_a_mean(tmp_path: Path) -> None:
    split(make_results(tmp_path))
    seen: list[int] = []

    def once(row: Row) -> None:
        row["prefill"]["minor_faults"] = 100_000 if row["mode"] == "eager" and not seen else 0
        seen.append(1) if row["mode"] == "eager" else None

    edit_rows(tmp_path, once)
    assert "page faults" not in (what_is_saved(found(tmp_path).main[0]) or "")


def test_a_small_gain_is_no_surprise(tmp_path: Path) -> None:
    small = {"eager": 1.0, "no_grad": 0.99, "inference_mode": 0.98, "compiled": 0.9, "reduce-overhead": 0.95}
    split(make_results(tmp_path, small))
    findings = found(tmp_path)
    told = what_is_saved(findings.main[0]) or ""
    assert told.startswith("Of the ")
    assert "kernel-bound" not in told


def test_where_the_baseline_ships_nothing_is_saved(tmp_path: Path) -> None:
    slower = dict.fromkeys(("eager", "no_grad", "inference_mode", "compiled", "reduce-overhead"), 1.0)
    findings = found(make_results(tmp_path, slower))
    assert what_is_saved(findings.main[0]) is None


def test_an_undecided_bound_is_explained_as_undecided(tmp_path: Path) -> None:
    split(make_results(tmp_path), dispatch="measured")
    edit_rows(tmp_path, lambda row: set_split(row, "decode", 0.3 + 0.4 * (row["round"] % 2), 0.0))
    findings = found(tmp_path)
    told = what_is_saved(findings.main[0]) or ""
    assert told.startswith("eager's decode is undecided between balanced and kernel-bound, and compiled")


def test_headroom_is_told_beside_what_the_mode_to_ship_gets(tmp_path: Path) -> None:
    split(make_results(tmp_path), eager_index=0.4, reach=0.05)
    told = headroom(found(tmp_path).main[0])
    assert told is not None
    assert told.startswith(
        "Dispatch is 60 % of inference_mode's decode step: without it the step would be 2.50 (2.22–2.86) "
        "times as fast; compiled gets 2.29"
    )
    split(tmp_path, dispatch="measured")
    assert headroom(found(tmp_path).main[0]) is None


def test_every_mode_is_compared_with_the_best_rung_without_a_compiler(tmp_path: Path) -> None:
    verdict = found(make_results(tmp_path)).main[0]
    assert verdict.of("inference_mode").against_plain is None
    compared = {s.cell.mode: s.against_plain for s in verdict.modes if s.against_plain}
    assert set(compared) == set(CLEAR) - {"inference_mode"}
    assert compared["compiled"].speedup.value == pytest.approx(0.7 / 0.4, rel=0.05)
    assert (compared["compiled"].word, compared["eager"].word) == ("faster", "slower")


def test_shares_name_both_phases_with_intervals_or_say_that_they_are_unknown(tmp_path: Path) -> None:
    folder = make_results(tmp_path)
    assert "(intervals unknown: not recorded)" in shares([found(folder).main[0].baseline])
    told = shares([found(with_intervals(folder, 0.05)).main[0].baseline])
    assert told == "Kernel share: decode 24 % (19–29) in eager; prefill 24 % (19–29) in eager."
