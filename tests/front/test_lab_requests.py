"""Requests of the lab stay out of a sweep: while one is in progress they are refused, before they run."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from service.front import study_runner
from tests.support.serving import BODY, Front, running

LAB = {"X-Launchbound-Client": "lab"}
SWEEP = {"X-Launchbound-Run": "20260101-1"}


@pytest.fixture
def swept() -> Iterator[Front]:
    """A front that a sweep has just sent a request."""
    with running() as front:
        front.await_ready()
        assert front.generate(headers=SWEEP).status_code == 200
        yield front


def refused_for_a_sweep(answer: httpx.Response) -> None:
    assert answer.status_code == 409, answer.text
    assert answer.json()["error"]["type"] == "run_in_progress"
    assert 0 < int(answer.headers["retry-after"]) <= study_runner.RUN_SECONDS


def counted(front: Front) -> float:
    return sum(value for name, value in front.series().items() if name.startswith("requests_total{"))


def test_during_a_sweep_a_request_of_the_lab_is_refused_and_counted_nowhere(swept: Front) -> None:
    before = counted(swept)
    refused_for_a_sweep(swept.generate(headers=LAB))
    refused_for_a_sweep(swept.generate(headers=LAB, stream=True))
    refused_for_a_sweep(swept.http.post("/v1/compare", json={**BODY, "repeats": 1}, headers=LAB))
    assert counted(swept) == before == 1
    rejected = [value for name, value in swept.series().items() if name.startswith("requests_rejected_total")]
    assert set(rejected) == {0.0}


def test_others_are_served_during_a_sweep_and_the_lab_after_it(
    swept: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert swept.generate().status_code == 200
    monkeypatch.setattr(study_runner, "RUN_SECONDS", 0.0)
    assert swept.generate(headers=LAB).status_code == 200


def test_a_request_of_the_lab_is_none_of_a_sweep(own_front: Front) -> None:
    assert own_front.generate(headers=LAB).status_code == 200
    assert own_front.state.studies.sweeps.seconds_left() == 0.0
