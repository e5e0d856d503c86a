"""What the report says in words: the answer, why, when compiling has paid back, and the crossover."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.report.findings import Findings
from loadtests.report.results import read_results
from loadtests.report.wording import crossing, headline, headroom, paid_back, saved, tie
from service.statistics.boundedness import Crossover, CrossoverSpan
from tests.support.made_results import (
    CLEAR,
    Row,
    edit_rows,
    make_results,
    set_split,
    with_compilations,
)


def found(folder: Path) -> Findings:
    return Findings(read_results(folder))


@pytest.mark.parametrize("other", [0.3999, 0.401])
def test_a_tie_names_both_and_the_most_that_the_simpler_gives_up(tmp_path: Path, other: float) -> None:
    relative = CLEAR | {"compiled": 0.4, "reduce-overhead": other}
    findings = found(make_results(tmp_path, relative, scatter=0.05))
    text = headline(findings)
    assert text.startswith("compiled, tied with compiled-cpp, is the mode to ship")
    assert "; by 98.3 % intervals it gives up at most" in text
    for verdict in findings.main:
        told = tie(verdict, findings.confidence) or ""
        assert verdict.choice is not None
        assert told.startswith("tied with compiled-cpp; ")
        if verdict.choice.given_up:
            assert "as the simplest it gives up" in told
        else:
            assert f"{100 * ((verdict.choice.at_most or 0) - 1):.1f} %" in told
            assert "another may be faster by at most" in told


def test_a_tie_within_two_percent_is_called_equal(tmp_path: Path) -> None:
    close = CLEAR | {"compiled": 0.4, "reduce-overhead": 0.399}
    findings = found(make_results(tmp_path, close, scatter=0.0001))
    assert "counts as equal" in (tie(findings.main[0], findings.confidence) or "")


def split(folder: Path, eager_index: float, reach: float = 0.02, dispatch: str = "sampled") -> None:
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


def test_what_is_saved_is_told_by_its_parts(tmp_path: Path) -> None:
    split(make_results(tmp_path), 0.15)
    in_all, *parts = saved(found(tmp_path).main[0])
    assert in_all.endswith(" ms in all")
    assert parts == ["2.00 → 1.00 ms dispatch", "12.0 → 6.00 ms kernel", "1,300 page faults fewer"]


@pytest.mark.parametrize(("eager_index", "reach"), [(0.7, 0.6), (0.15, 0.34)])
def test_kernel_times_that_the_split_does_not_tell_apart_are_called_that(
    tmp_path: Path, eager_index: float, reach: float
) -> None:
    split(make_results(tmp_path), eager_index, reach)
    assert "6.00 ms kernel (the split does not resolve this difference)" in saved(found(tmp_path).main[0])[2]


def test_the_page_faults_of_one_request_are_no_reason_for_a_mean(tmp_path: Path) -> None:
    split(make_results(tmp_path), 0.8)
    seen: list[int] = []

    def once(row: Row) -> None:
        row["prefill"]["minor_faults"] = 100_000 if row["mode"] == "eager" and not seen else 0
        seen.append(1) if row["mode"] == "eager" else None

    edit_rows(tmp_path, once)
    assert "page faults" not in " ".join(saved(found(tmp_path).main[0]))


def test_headroom_is_told_beside_what_the_mode_to_ship_gets(tmp_path: Path) -> None:
    split(make_results(tmp_path), eager_index=0.4, reach=0.05)
    told = headroom(found(tmp_path).main[0]) or ""
    assert told.startswith("inference_mode 2.50× (2.22–2.86), dispatch 60 % of its step; compiled gets 2.29")
    split(tmp_path, 0.4, dispatch="measured")
    assert headroom(found(tmp_path).main[0]) is None


def test_payback_is_told_from_both_caches_and_an_unknown_cost_has_its_remedy(tmp_path: Path) -> None:
    known, half, unknown = (tmp_path / name for name in ("known", "half", "unknown"))
    for folder in (known, half, unknown):
        make_results(folder, CLEAR | {"no_grad": 0.65})
    with_compilations(known, seconds=0.6, cold_seconds=12.0)
    with_compilations(half, cold_seconds=None)
    told = paid_back(found(known).main[0].of("compiled"))
    assert [told[1], told[2].partition(" from ")[2], told[3]] == [
        "from a warm cache, 1.20 s",
        "an empty cache, 24.0 s",
        "against no_grad",
    ]
    remedy = "unknown: run once with an empty compile cache"
    assert paid_back(found(half).main[0].of("compiled"))[2].startswith(f"{remedy} from an empty cache")
    assert paid_back(found(unknown).main[0].of("compiled"))[0] == remedy
    assert paid_back(found(known).main[0].baseline) == []


def at(batch: float) -> Crossover:
    return Crossover("at", batch)


BELOW, ABOVE, UNKNOWN = Crossover("below", 1.0), Crossover("above", 16.0), Crossover("unknown", None)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (CrossoverSpan(at(4.5), at(3.8), at(5.6)), "at batch 4.5 (interval: at batch 3.8 to at batch 5.6)"),
        (CrossoverSpan(at(2.4), BELOW, at(5.6)), "at batch 2.4 (interval: below batch 1 to at batch 5.6)"),
        (CrossoverSpan(BELOW, BELOW, BELOW), "below batch 1 (interval: below batch 1)"),
        (CrossoverSpan(ABOVE, at(12.0), ABOVE), "above batch 16 (interval: at batch 12 to above batch 16)"),
        (CrossoverSpan(at(4.5), UNKNOWN, UNKNOWN), "at batch 4.5 (interval unknown)"),
    ],
)
def test_the_crossing_says_no_more_than_was_measured(span: CrossoverSpan, text: str) -> None:
    assert crossing(span) == f"In decode eager's kernels take as long as its dispatch {text}."
