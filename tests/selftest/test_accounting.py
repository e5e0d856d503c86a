"""What a selftest amounts to: what failed, what is undecided, what was not run, and when it counts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from service.front.settings import Settings
from service.selftest.accounting import tally, why_incomplete
from service.selftest.checks import ALL_CHECKS
from service.selftest.results import CheckResult, Verdict

GIT: Mapping[str, object] = {"commit": "0123456789ab", "dirty": False}
FACTS = {"cpu": "a CPU", "dtype": "float32", "default_dtype": "float32"}


def row(name: str, verdict: Verdict) -> CheckResult:
    return CheckResult(name=name, bound="b", verdict=verdict)


GOOD = row("good", "pass")
OPEN = row("open", "undecided")
BAD = row("bad", "fail")
GPU = row("gpu", "not measurable here")


@pytest.mark.parametrize(
    ("rows", "complete", "outcome"),
    [
        ([GOOD, GPU], True, "passed"),
        ([GOOD, OPEN], True, "undecided"),
        ([GOOD, OPEN, BAD], True, "failed"),
        ([GOOD], False, "partial"),
        ([GOOD, OPEN], False, "partial"),
        ([BAD], False, "failed"),
    ],
)
def test_passed_is_said_only_of_a_complete_selftest_without_failed_and_undecided_rows(
    rows: list[CheckResult], complete: bool, outcome: str
) -> None:
    assert tally(rows, ALL_CHECKS).outcome(complete) == outcome


def test_every_row_that_did_not_pass_and_every_check_that_was_not_run_is_named_beside_the_count() -> None:
    found = tally([GOOD, OPEN, BAD, GPU], set(ALL_CHECKS) - {"twice", "scrape"})
    assert found.counts() == {"passed": 1, "failed": 1, "undecided": 1, "not_measurable": 1, "not_run": 2}
    assert found.sentence() == (
        "1 of 3 rows passed; failed: bad; undecided: open; not measurable here: gpu; not run: scrape, twice"
    )
    assert tally([GOOD], ALL_CHECKS).sentence() == "1 of 1 rows passed"


def test_all_checks_at_the_defaults_of_a_clean_commit_are_a_complete_selftest() -> None:
    assert why_incomplete(Settings(), FACTS, GIT, []) == []
    assert why_incomplete(Settings(dtype="float32", device="cpu"), FACTS, GIT, []) == []


@pytest.mark.parametrize(
    ("settings", "facts", "git", "not_run", "reason"),
    [
        ({}, {}, {}, ["twice", "scrape"], "2 of 19 checks were not run"),
        ({}, {}, {"dirty": True}, [], "uncommitted changes"),
        ({}, {}, {"commit": None}, [], "the commit is unknown"),
        ({}, {"dtype": "bfloat16"}, {}, [], "dtype is bfloat16"),
        ({"model": "small"}, {}, {}, [], "model is small"),
        ({"modes": ["eager", "compiled"]}, {}, {}, [], "modes is eager,compiled"),
        ({"batch_sizes": [1]}, {}, {}, [], "batch_sizes is 1"),
        ({"context": 64}, {}, {}, [], "context is 64"),
        ({"threads": 2}, {}, {}, [], "threads is 2"),
        ({"instrumentation": "off"}, {}, {}, [], "instrumentation is off"),
    ],
)
def test_anything_else_is_partial_and_says_why(
    settings: dict[str, object],
    facts: dict[str, str],
    git: dict[str, object],
    not_run: list[str],
    reason: str,
) -> None:
    chosen = Settings.model_validate(settings)
    assert why_incomplete(chosen, {**FACTS, **facts}, {**GIT, **git}, not_run) == [reason]
