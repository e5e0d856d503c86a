"""The supervisor: one private socket per engine process, and an engine that is always restarted or ended."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.front import child_process, supervisor
from service.front.supervisor import FAILURES_UNTIL_UNHEALTHY, LAST_RETRY_SECONDS, STAYED_SECONDS
from tests.support.serving import Front, running, until

pytestmark = pytest.mark.slow


def test_an_engine_has_a_session_of_its_own_no_file_as_a_socket_and_is_killed_if_it_ignores_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed front would leave the file, and Ctrl-C in a terminal goes to its session."""
    monkeypatch.setattr(child_process, "STOP_SECONDS", 0.2)
    monkeypatch.setattr(child_process, "TERMINATE_SECONDS", 0.2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with running(deaf=True) as front:
        front.await_ready()
        engine = psutil.Process(front.state.supervisor.pid)
        assert list(tmp_path.iterdir()) == []
        assert os.getsid(engine.pid) == engine.pid != os.getsid(0)
    assert not engine.is_running()


def test_an_engine_that_has_not_connected_yet_is_ended_at_once() -> None:
    with running(unconnected=True) as front:
        engine = psutil.Process(until(lambda: front.state.supervisor.pid, "the engine's start"))
        began = time.monotonic()
    assert not engine.is_running()
    assert time.monotonic() - began < child_process.STOP_SECONDS


def test_an_engine_whose_messages_cannot_be_decoded_is_replaced(own_front: Front) -> None:
    pid = own_front.state.supervisor.pid
    answer = own_front.command("!garbage")
    assert answer.status_code == 503
    assert "cannot be decoded" in answer.json()["error"]["message"]
    own_front.await_ready()
    assert own_front.state.supervisor.pid != pid


def test_a_command_that_does_not_exist_is_reported_and_tried_again(tmp_path: Path) -> None:
    with running(command=[str(tmp_path / "nothing")]) as front:
        until(lambda: "could not be started" in front.state.client.down_reason, "the reason")
        until(lambda: front.state.supervisor.starts > 1, "another start")


def test_engines_that_never_start_make_the_service_unhealthy_and_are_started_on() -> None:
    with running(exit=supervisor.EXIT_DEVICE_LOST) as front:
        front.state.supervisor.first_retry_seconds = 0.01
        until(lambda: front.state.supervisor.starts > FAILURES_UNTIL_UNHEALTHY, "starts")
        for path in ("/health/live", "/health/ready"):
            answer = front.http.get(path)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "unwell")
            assert "times in a row" in answer.json()["error"]["message"]
            assert "exit code 4: an error of CUDA" in answer.json()["error"]["message"]


def test_a_service_whose_engine_stays_is_healthy_although_others_ended_before_it(own_front: Front) -> None:
    supervisor, client = own_front.state.supervisor, own_front.state.client
    until(lambda: client.warm_since, "its engine to be warm")
    supervisor.failures = FAILURES_UNTIL_UNHEALTHY
    for passed, status in ((0.0, 503), (STAYED_SECONDS, 200)):
        client.warm_since = time.monotonic() - passed
        for path in ("/health/live", "/health/ready"):
            assert own_front.http.get(path).status_code == status
    own_front.command("!die")
    until(lambda: supervisor.failures == 1 and client.warm_since, "the next one to be warm")


def test_whatever_running_an_engine_raises_is_a_death_and_the_next_one_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spawned = child_process.spawn

    async def fail_once(*arguments: Any) -> Any:
        monkeypatch.setattr(child_process, "spawn", spawned)
        raise RuntimeError("as commanded")

    monkeypatch.setattr(child_process, "spawn", fail_once)
    with running() as front:
        until(lambda: front.state.client.last_failure, "the first death")
        assert "RuntimeError: as commanded" in front.state.client.last_failure
        front.await_ready()
        assert front.state.supervisor.starts == 2


def test_an_engine_that_is_stopped_is_replaced_and_its_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(child_process, "STILL_SECONDS", 0.2)
    monkeypatch.setattr(child_process, "CHECK_SECONDS", 0.1)
    with running() as front:
        front.await_ready()
        pid = front.state.supervisor.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        answer = front.command("x")
        assert answer.status_code == 503
        assert "has stood still for" in answer.json()["error"]["message"]
        front.await_ready()
        assert front.state.supervisor.pid != pid


@pytest.mark.parametrize(
    ("states", "discards"),
    [({"compiled": "warming"}, True), ({"eager": "warming", "compiled": "cold"}, False), ({}, False)],
)
def test_an_engine_that_a_library_crashed_in_a_compiled_mode_is_followed_by_one_that_compiles_anew(
    states: dict[str, str], discards: bool
) -> None:
    """One that had not come to compiled code is not, and one that had been warm: its code had run."""
    with running({"modes": ["eager", "compiled"]}, states=states, cold=bool(states)) as front:
        until(lambda: front.state.client.engine, "the engine")
        pid = front.state.supervisor.pid
        assert pid is not None
        os.kill(pid, signal.SIGBUS)
        until(lambda: front.state.supervisor.starts == 2 and front.state.supervisor.pid, "the next engine")
        following = psutil.Process(front.state.supervisor.pid)
        until(following.cmdline, "its command line, which the kernel shows late")
        assert json.loads(following.cmdline()[-1])["discard_compiled"] is discards


def test_each_further_failure_in_a_row_waits_twice_as_long_up_to_a_limit(own_front: Front) -> None:
    supervisor, waits = own_front.state.supervisor, (0.5, 1.0, LAST_RETRY_SECONDS)
    for failures, waited in zip((0, 1, 10), waits, strict=True):
        supervisor.failures = failures
        own_front.state.client.warm_since = None
        assert supervisor._failed("as commanded") == waited
