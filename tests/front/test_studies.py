"""Studies with both processes faked: when they may run, what waits, and what ends with what."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from service.front import study_runner
from service.front.settings import Settings
from service.front.study_runner import AnatomyProcess
from tests.support.serving import FAKE_ANATOMY, Front, refused, running, until

STUDY = "/v1/studies/operators"


class Place:
    """A front with fakes behind it, the folder that commands one of them, and threads to call from."""

    def __init__(self, front: Front, folder: Path, threads: ThreadPoolExecutor) -> None:
        self.front = front
        self.folder = folder
        self._threads = threads

    def study(self, **body: object) -> httpx.Response:
        return self.front.http.post(STUDY, json={"mode": "eager", **body})

    def meanwhile(self, call: Callable[..., httpx.Response], *arguments: Any) -> Future[httpx.Response]:
        return self._threads.submit(call, *arguments)

    def command(self, text: str) -> None:
        (self.folder / "command").write_text(text)

    def hold(self) -> None:
        self.command("hold")
        (self.folder / "holding").unlink(missing_ok=True)
        (self.folder / "go").unlink(missing_ok=True)

    def held(self) -> Future[httpx.Response]:
        self.hold()
        study = self.meanwhile(self.study)
        until((self.folder / "holding").exists, "the study to begin")
        return study

    def go(self) -> None:
        (self.folder / "go").touch()

    def pids(self) -> list[int]:
        path = self.folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def renew(self) -> None:
        """End the anatomy process and forget its commands; the engine is at rest."""
        self.go()
        self.front.renew()
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(psutil.pid_exists, self.pids())), "the end of the anatomy process")
        for file in self.folder.iterdir():
            file.unlink()

    def progress(self) -> str:
        return (self.folder / "holding").read_text()


@contextmanager
def place(folder: Path, settings: dict[str, Any] | None = None, **options: object) -> Iterator[Place]:
    with running(settings, anatomy=folder, **options) as front, ThreadPoolExecutor(4) as threads:
        if not options:
            front.await_ready()
        else:
            until(lambda: front.state.client.engine, "the engine")
        try:
            yield Place(front, folder, threads)
        finally:
            (folder / "go").touch()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("fakes")) as made:
        yield made


@pytest.fixture
def here(shared: Place) -> Place:
    """The module's front as at its start: without a study, a sweep or an anatomy process."""
    shared.renew()
    return shared


def test_the_finding_leaves_as_the_anatomy_process_made_it_with_the_time_it_took(here: Place) -> None:
    answer = here.study(batch_size=4, phase="prefill")
    assert answer.status_code == 200
    assert answer.content == b'{"operators":[],"order":1}'
    parts = [part.split(";")[0] for part in answer.headers["server-timing"].split(", ")]
    assert parts == ["wait", "start", "study"]
    received = json.loads((here.folder / "studies").read_text())
    assert received == ["operators", {"mode": "eager", "batch_size": 4, "phase": "prefill"}]
    for _ in range(2):
        assert here.study().status_code == 200
    assert len(here.pids()) == 1


def test_a_sweeps_header_without_an_accepted_request_blocks_no_study(here: Place) -> None:
    headers = {"X-Launchbound-Run": "1"}
    here.front.http.get("/v1/modes", headers=headers)
    here.front.generate(headers=headers, max_new_tokens=0)
    here.front.generate("fast", headers=headers)
    assert here.study().status_code == 200


def test_a_request_during_a_study_waits_for_its_end_and_is_answered(here: Place) -> None:
    study = here.held()
    assert here.front.http.get("/health/live").json()["engine_paused"] is True
    request = here.meanwhile(here.front.generate)
    until(lambda: here.front.state.client.in_progress().total() == 1, "the request to be admitted")
    before = here.progress()
    until(lambda: here.progress() != before, "the study to go on")
    assert not request.done()
    assert here.front.series()["queue_depth"] == 1
    here.go()
    assert study.result().status_code == 200
    assert request.result().status_code == 200
    assert here.front.series()["queue_depth"] == 0
    assert here.front.http.get("/health/live").json()["engine_paused"] is False


def test_requests_sent_before_a_study_run_before_it(here: Place) -> None:
    running_one = here.meanwhile(here.front.command, "!hold")
    until(lambda: here.front.state.client.in_progress().total() == 1, "the request to be admitted")
    study = here.meanwhile(here.study)
    until(lambda: here.front.state.client.pause.lost is not None, "the study to be admitted")
    assert here.pids() == []
    assert here.front.command("!release").status_code == 200
    assert running_one.result().status_code == 200
    assert study.result().status_code == 200


def test_a_request_that_has_waited_enough_ends_the_study(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here.front.state.studies, "_longest_wait", 0.05)
    study = here.held()
    assert here.front.generate().status_code == 200
    ended = refused(study.result(), 503)
    assert ended["type"] == "study_interrupted"
    assert "a request has waited" in ended["message"]


def test_a_study_is_refused_during_a_sweep_and_until_some_time_after_its_last_request(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = {"X-Launchbound-Run": "20260101-1"}
    held = here.meanwhile(lambda: here.front.generate(headers=sweep, prompts=["!hold"]))
    until(lambda: here.front.state.client.in_progress().total() == 1, "the request to be admitted")
    assert refused(here.study(), 409)["type"] == "run_in_progress"
    assert here.front.command("!release").status_code == 200
    assert held.result().status_code == 200
    denied = here.study()
    assert refused(denied, 409)["type"] == "run_in_progress"
    assert 0 < int(denied.headers["retry-after"]) <= study_runner.RUN_SECONDS
    assert here.pids() == []
    monkeypatch.setattr(study_runner, "RUN_SECONDS", 0.0)
    assert here.study().status_code == 200


def test_a_run_that_begins_ends_the_study_and_its_process(here: Place) -> None:
    study = here.held()
    process = psutil.Process(here.pids()[0])
    answer = here.front.generate(headers={"X-Launchbound-Run": "20260101-1"})
    assert answer.status_code == 200
    assert refused(study.result(), 409)["type"] == "run_in_progress"
    assert not process.is_running()


@pytest.mark.parametrize(
    ("command", "reason"),
    [("die", "exit code 7"), ("garbage", "cannot be decoded"), ("exit-at-start 2", "exit code 2")],
)
def test_a_process_that_breaks_or_cannot_start_is_a_clear_503_and_the_next_call_starts_another(
    here: Place, command: str, reason: str
) -> None:
    here.command(command)
    answer = here.study()
    detail = refused(answer, 503)
    assert detail["type"] == "study_interrupted"
    assert reason in detail["message"]
    assert int(answer.headers["retry-after"]) > 0
    assert here.front.generate().status_code == 200
    here.command("ok")
    assert here.study().status_code == 200
    assert len(set(here.pids())) == 2


@pytest.mark.parametrize(
    ("type_", "status"),
    [("invalid_request", 422), ("unsupported_here", 422), ("unknown_mode", 404), ("study_failed", 500)],
)
def test_what_a_study_is_refused_with_has_its_status_and_leaves_the_process_alone(
    here: Place, type_: str, status: int
) -> None:
    here.command(f"refuse {type_}")
    assert refused(here.study(), status) == {"type": type_, "message": "as commanded", "param": "mode"}
    here.command("ok")
    assert here.study().status_code == 200
    assert len(here.pids()) == 1


@pytest.mark.slow
def test_the_process_ends_in_order_after_some_time_without_a_study_and_with_the_front(tmp_path: Path) -> None:
    with place(tmp_path, {"anatomy_idle_seconds": 0.0}) as here:
        assert here.study().status_code == 200
        until((tmp_path / "stopped").exists, "the end of the process")
        until(lambda: not psutil.pid_exists(here.pids()[0]), "the end of the process")
        runner, (first,) = here.front.state.studies, here.pids()
        runner._settings = runner._settings.model_copy(update={"anatomy_idle_seconds": 60.0})
        (tmp_path / "stopped").unlink()
        assert here.study().status_code == 200
        second = here.pids()[1]
        assert second != first
        assert psutil.pid_exists(second)
    assert (tmp_path / "stopped").exists()
    assert not psutil.pid_exists(second)


def test_a_study_in_progress_ends_where_the_service_drains(here: Place) -> None:
    study = here.held()
    pid = here.pids()[0]
    client = here.front.state.client
    loop = client.pause.lost.get_loop() if client.pause.lost else None
    assert loop is not None
    loop.call_soon_threadsafe(client.abandon)
    assert refused(study.result(), 503)["type"] == "shut_down"
    assert refused(here.study(), 503)["type"] == "draining"
    assert not psutil.pid_exists(pid)


def test_an_engine_that_ends_during_a_study_ends_it(here: Place) -> None:
    study = here.held()
    engine = here.front.state.supervisor.pid
    assert engine is not None
    os.kill(engine, 9)
    assert refused(study.result(), 503)["type"] == "engine_lost"
    here.front.await_ready()
    here.command("ok")
    assert here.study().status_code == 200


def test_while_a_mode_is_on_its_way_a_study_is_refused(here: Place) -> None:
    here.front.command("!state compiled warming")
    assert refused(here.study(), 503)["type"] == "warming"
    here.front.command("!state compiled failed")
    assert here.study().status_code == 200


def test_a_start_right_after_a_death_begins_another_process(tmp_path: Path) -> None:
    async def pids() -> list[int | None]:
        command = [sys.executable, str(FAKE_ANATOMY), str(tmp_path)]
        process = AnatomyProcess(Settings().engine_settings, command)
        seen = []
        try:
            for _ in range(3):
                await process.start()
                seen.append(process.pid)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            while process._process is not None and process._process.returncode is None:
                await asyncio.sleep(0.001)
            await process.start()
            seen.append(process.pid)
            process.kill()
            await process.start()
            seen.append(process.pid)
        finally:
            await process.end(in_order=True)
        return seen

    first, second, third, last, after_kill = asyncio.run(pids())
    assert first == second == third
    assert None not in (first, last, after_kill)
    assert len({first, last, after_kill}) == 3
