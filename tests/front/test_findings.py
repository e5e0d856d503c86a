"""Kept findings: bounded in number and bytes, and who asks for one that is gone is told why."""

from __future__ import annotations

import pytest

from service.front.errors import NotFound
from service.front.study_runner import Findings, StudyResult


def test_the_oldest_are_given_up_for_newer_ones_and_this_is_said() -> None:
    findings = Findings(most=2)
    ids = [findings.keep("layers", {"rounds": number}, StudyResult(b"{}")).id for number in range(4)]
    assert [kept.id for kept in findings] == [ids[3], ids[2]]
    assert findings.given_up == 2
    with pytest.raises(NotFound, match="given up for newer ones: run the study again") as gone:
        findings.by_id(ids[0])
    assert gone.value.type == "given_up"


def test_bytes_are_bounded_with_those_of_files_but_the_newest_always_stays() -> None:
    findings = Findings(most_bytes=100)
    findings.keep("tape", {}, StudyResult(bytes(40)))
    findings.keep("timeline", {}, StudyResult(bytes(10), {}, {"trace": bytes(50)}))
    assert [kept.study for kept in findings] == ["timeline", "tape"]
    findings.keep("tape", {}, StudyResult(b"{}"))
    assert [kept.study for kept in findings] == ["tape", "timeline"]
    findings.keep("memory", {}, StudyResult(b"{}", {}, {"snapshot": bytes(500)}))
    assert [kept.study for kept in findings] == ["memory"]


@pytest.mark.parametrize("identity", ["layers-2", "layers-0", "layers", "-1", "layers-1x", "", "x" * 300])
def test_an_id_that_never_was_is_not_said_to_have_been_given_up(identity: str) -> None:
    findings = Findings()
    findings.keep("layers", {}, StudyResult(b"{}"))
    with pytest.raises(NotFound, match="GET /v1/studies lists") as unknown:
        findings.by_id(identity)
    assert unknown.value.type == "not_found"


def test_the_newest_is_found_by_those_of_its_arguments_that_are_asked_for() -> None:
    findings = Findings()
    step = {"mode": "eager", "batch_size": 4}
    findings.keep("operators", step, StudyResult(b"1"))
    newest = findings.keep("operators", {**step, "native": True}, StudyResult(b"2"))
    findings.keep("operators", {**step, "mode": "no_grad"}, StudyResult(b"3"))
    findings.keep("tape", {**step, "sizes": [1, 2]}, StudyResult(b"4"))
    assert findings.newest("operators", step) is newest
    assert findings.newest("operators", {**step, "batch_size": 1}) is None


def test_a_file_is_found_by_name_else_the_others_or_the_reason_are_told() -> None:
    findings = Findings()
    kept = findings.keep(
        "timeline", {}, StudyResult(b"{}", {}, {"trace": b"events"}, {"snapshot": "it was too large"})
    )
    assert findings.file(kept.id, "trace") == b"events"
    with pytest.raises(NotFound, match="too large"):
        findings.file(kept.id, "snapshot")
    with pytest.raises(NotFound, match="it has trace"):
        findings.file(kept.id, "../trace")
