"""The lease of a pause counts from when the engine has paused, and running out of it is noticed."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.front import engine_client, study_runner
from service.front.engine_client import LEASE_SECONDS, PauseLease
from service.records import Pause, Paused, ToEngine
from tests.support.serving import running, until

STUDY, STEP = "/v1/studies/operators", {"mode": "eager"}


class Clock:
    """A monotonic clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(engine_client, "monotonic", clock)
    # A renewal would move the lease's end between two lines of a test.
    monkeypatch.setattr(study_runner, "RENEW_SECONDS", 3600.0)
    return clock


def test_the_lease_counts_from_the_beginning_of_the_pause(clock: Clock) -> None:
    posted: list[ToEngine] = []

    async def pause_after(seconds: float) -> PauseLease:
        pause = PauseLease(posted.append)
        beginning = asyncio.create_task(pause.begin())
        await asyncio.sleep(0)
        clock.seconds += seconds
        assert isinstance(posted[0], Pause)
        pause.answered(Paused(id=posted[0].id, holds=True))
        await beginning
        return pause

    pause = asyncio.run(pause_after(2 * LEASE_SECONDS))
    assert not pause.overdue
    # Renewed at once: an engine whose lease has run out by then answers that it does not hold.
    assert posted == [posted[0]] * 2
    clock.seconds += LEASE_SECONDS + 1
    assert pause.overdue


def test_a_study_that_waited_long_for_the_engine_is_answered(tmp_path: Path, clock: Clock) -> None:
    with running(anatomy=tmp_path) as front, ThreadPoolExecutor(2) as threads:
        front.await_ready()
        busy = threads.submit(front.command, "!hold")
        until(lambda: front.state.client.in_progress().total() == 1, "the request to be admitted")
        study = threads.submit(front.http.post, STUDY, json=STEP)
        until(lambda: front.state.client.pause.lost is not None, "the study to be admitted")
        clock.seconds += 2 * LEASE_SECONDS
        assert front.command("!release").status_code == 200
        assert busy.result().status_code == 200
        assert study.result().status_code == 200, study.result().text


def test_a_study_whose_lease_ran_out_is_interrupted(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "command").write_text("hold")
    with running(anatomy=tmp_path) as front, ThreadPoolExecutor(1) as threads:
        front.await_ready()
        study = threads.submit(front.http.post, STUDY, json=STEP)
        until((tmp_path / "holding").exists, "the study to begin")
        clock.seconds += LEASE_SECONDS + 1
        (tmp_path / "go").touch()
        assert study.result().status_code == 503
        assert study.result().json()["error"]["type"] == "study_interrupted"
