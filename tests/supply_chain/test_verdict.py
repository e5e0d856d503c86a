"""Which vulnerabilities fail, and which an entry of the ignore list covers."""

from __future__ import annotations

from datetime import date

import pytest

from supply_chain.audit import IGNORED
from supply_chain.ignored import Ignored, read_ignored
from supply_chain.verdict import judged
from supply_chain.vulnerability_service import Audited, Vulnerability

TODAY = date(2026, 6, 15)
FOUND = [
    Audited("good", "1.0"),
    Audited("bad-thing", "2.0", [Vulnerability("PYSEC-1", ["2.1"], ["CVE-1", "GHSA-1"])]),
]


def ignored(number: str = "PYSEC-1", package: str = "bad-thing", until: date = TODAY) -> Ignored:
    return Ignored(id=number, package=package, reason="not called", noted=date(2026, 1, 1), until=until)


@pytest.mark.parametrize("number", ["PYSEC-1", "CVE-1", "GHSA-1"])
@pytest.mark.parametrize("package", ["bad-thing", "Bad.Thing", "bad_thing"])
def test_an_entry_covers_by_any_id_and_any_spelling_until_its_last_day(number: str, package: str) -> None:
    verdict = judged(FOUND, [ignored(number, package)], TODAY)
    assert (verdict.packages, verdict.failures, verdict.notes) == (2, [], [])
    assert len(verdict.ignored) == 1


@pytest.mark.parametrize(
    "entry", [ignored(until=date(2026, 6, 14)), ignored("PYSEC-2"), ignored(package="good")]
)
def test_an_entry_that_is_past_or_of_something_else_covers_nothing(entry: Ignored) -> None:
    (failure,) = judged(FOUND, [entry], TODAY).failures
    assert failure.startswith("bad-thing 2.0: PYSEC-1 (CVE-1, GHSA-1), fixed in 2.1")


def test_an_entry_that_is_past_is_named_as_the_cause() -> None:
    (failure,) = judged(FOUND, [ignored(until=date(2026, 6, 14))], TODAY).failures
    assert "2026-06-14, which is past" in failure


def test_an_entry_for_what_is_not_known_is_told() -> None:
    (note,) = judged(FOUND[:1], [ignored()], TODAY).notes
    assert "remove the entry" in note


def test_what_is_fixed_nowhere_says_so() -> None:
    (failure,) = judged([Audited("x", "1", [Vulnerability("PYSEC-9")])], [], TODAY).failures
    assert failure == "x 1: PYSEC-9, not fixed in any version yet"


def test_the_projects_own_ignore_list_can_be_read() -> None:
    assert all(len(entry.reason) > 20 for entry in read_ignored(IGNORED))
