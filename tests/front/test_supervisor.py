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
from service.front.supervisor import (
    FAILURES_UNTIL_UNHEALTHY,
    SLOWEST_RETRY_SECONDS,
    STAYED_SECONDS,
    WINDOW_SECONDS,
    Failures,
)
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
        front.state.supervisor.failures.first_retry_seconds = 0.01
        until(lambda: front.state.supervisor.starts > FAILURES_UNTIL_UNHEALTHY, "starts")
        for path in ("/health/live", "/health/ready"):
            answer = front.http.get(path)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "unwell")
            assert "the engine ended 5 times" in answer.json()["error"]["message"]
            assert "exit code 4: an error of CUDA" in answer.json()["error"]["message"]


def test_a_service_whose_engine_stays_is_healthy_although_others_ended_before_it(own_front: Front) -> None:
    counted, client = own_front.state.supervisor.failures, own_front.state.client
    first = until(lambda: client.warm_since, "its engine to be warm")
    counted.first_retry_seconds = 0.01
    for _ in range(FAILURES_UNTIL_UNHEALTHY):
        counted.add(warm=True)
    for passed, status in ((0.0, 503), (STAYED_SECONDS, 200)):
        counted.now = lambda passed=passed: time.monotonic() + passed
        for path in ("/health/live", "/health/ready"):
            assert own_front.http.get(path).status_code == status
    own_front.command("!die")
    until(lambda: (client.warm_since or first) > first, "the next one to be warm, from then on")


def test_whatever_running_an_engine_raises_is_a_death_and_the_next_one_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spawned = child_process.spawn

    async def fail_once(*arguments: Any) -> Any:
        monkeypatch.setattr(supervisor, "spawn", spawned)
        raise RuntimeError("as commanded")

    monkeypatch.setattr(supervisor, "spawn", fail_once)
    with running() as front:
        until(lambda: front.state.client.last_failure, "the first death")
        assert "RuntimeError: as commanded" in front.state.client.last_failure
        front.await_ready()
        assert front.state.supervisor.starts == 2


def test_an_engine_that_is_stopped_or_loops_within_a_step_is_replaced_and_its_request_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_process, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(child_process, "STILL_SECONDS", 0.2)
    monkeypatch.setattr(child_process, "CHECK_SECONDS", 0.1)
    with running(busy_limit=0.3) as front:
        front.state.supervisor.failures.first_retry_seconds = 0.01
        for command, reason in (("", "has stood still for"), ("!spin", "of CPU time within one step")):
            front.await_ready()
            pid = front.state.supervisor.pid
            assert pid is not None
            if not command:
                os.kill(pid, signal.SIGSTOP)
            answer = front.command(command or "x")
            assert answer.status_code == 503
            assert reason in answer.json()["error"]["message"]
            front.await_ready()
            assert front.state.supervisor.pid != pid


def test_an_engine_that_ends_once_is_replaced_at_once_and_later_ones_are_waited_for(own_front: Front) -> None:
    for waited in ("0.0 s", "0.5 s"):
        own_front.command("!die")
        own_front.await_ready()
        assert f"starts in {waited}" in own_front.state.client.last_failure
    supervisor = own_front.state.supervisor
    assert supervisor.socket.address.endswith(f"-engine-{supervisor.starts}")


def test_a_request_that_waits_behind_announced_work_does_not_end_the_engine() -> None:
    settings = {"request_timeout_seconds": 0.1, "hang_seconds": 0.1}
    with running(settings, doing="warming up compiled") as front:
        front.await_ready()
        client: Any = front.state.client
        missed, looks = client._missed, []
        client._missed = lambda pending: (looks.append(pending), missed(pending))
        assert front.command("!stall").status_code == 504
        until(lambda: len(looks) > 2, "some looks at the request")
        assert front.state.supervisor.starts == 1


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


# ---------------------------------------------------------------- when the next one starts


class Clock:
    """Says what it is set to."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_each_further_death_waits_twice_as_long_up_to_a_limit() -> None:
    assert Failures(0.5, Clock()).add(warm=True) == 0.0
    failures = Failures(0.5, Clock())
    waits = [failures.add(warm=False) for _ in range(12)]
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert waits[-1] == SLOWEST_RETRY_SECONDS


def test_engines_that_never_become_warm_are_unhealthy_however_long_each_takes_to_end() -> None:
    clock = Clock()
    failures = Failures(0.5, clock)
    for _ in range(FAILURES_UNTIL_UNHEALTHY):
        assert failures.unhealthy(None) is None
        clock.seconds += WINDOW_SECONDS + 1
        failures.add(warm=False)
    assert "in a row before it was warm" in (failures.unhealthy(None) or "")
    assert failures.unhealthy(warm_since=clock.seconds) is None
    # One that became warm ends the row, and what is long ago does not count.
    clock.seconds += WINDOW_SECONDS + 1
    assert failures.add(warm=True) == 0.0
    assert failures.unhealthy(None) is None


def test_engines_that_end_again_and_again_after_they_were_warm_are_unhealthy_until_they_stay() -> None:
    clock = Clock()
    failures = Failures(0.5, clock)
    for _ in range(FAILURES_UNTIL_UNHEALTHY):
        clock.seconds += 70.0
        failures.add(warm=True)
    assert "within 15 minutes" in (failures.unhealthy(None) or "")
    warm_since = clock.seconds
    clock.seconds += STAYED_SECONDS - 1
    assert "within 15 minutes" in (failures.unhealthy(warm_since) or "")
    clock.seconds += 1
    assert failures.unhealthy(warm_since) is None
    # Where it ends after all, it counts with those before it until they are long ago.
    assert failures.add(warm=True) > 0.0
    assert "within 15 minutes" in (failures.unhealthy(None) or "")
    clock.seconds += WINDOW_SECONDS + 1
    assert failures.unhealthy(None) is None
