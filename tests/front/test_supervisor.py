"""The supervisor: one private socket per engine process, and an engine that is always restarted or ended."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from pathlib import Path

import psutil
import pytest

from service.front import child_process, supervisor
from service.front.child_socket import ChildSocket
from tests.support.serving import Front, running, until

pytestmark = pytest.mark.slow


def test_the_sockets_lie_in_a_private_folder_that_is_removed() -> None:
    with running() as front:
        front.await_ready()
        folder = front.state.supervisor.folder
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert [path.name for path in folder.iterdir()] == ["engine-1.sock"]
    assert not folder.exists()


def test_each_engine_process_has_its_own_socket(own_front: Front) -> None:
    own_front.command("!die")
    own_front.await_ready()
    assert [path.name for path in own_front.state.supervisor.folder.iterdir()] == ["engine-2.sock"]


def test_the_engine_ends_with_the_front() -> None:
    with running() as front:
        front.await_ready()
        engine = psutil.Process(front.state.supervisor.pid)
    assert not engine.is_running()


def test_an_engine_that_has_not_connected_yet_is_ended_at_once() -> None:
    with running(unconnected=True) as front:
        engine = psutil.Process(until(lambda: front.state.supervisor.pid, "the engine's start"))
        began = time.monotonic()
    assert not engine.is_running()
    assert time.monotonic() - began < child_process.STOP_SECONDS


def test_a_send_without_a_peer_does_not_block(tmp_path: Path) -> None:
    async def send() -> bool:
        alone = ChildSocket(str(tmp_path / "l"), print)
        try:
            return alone.send(b"hello")
        finally:
            alone.close()

    assert asyncio.run(asyncio.wait_for(send(), 5)) is False


def test_an_engine_that_ignores_stop_and_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "STOP_SECONDS", 0.2)
    with running(states={"eager": "ready"}, deaf=True) as front:
        front.await_ready()
        engine = psutil.Process(front.state.supervisor.pid)
    assert not engine.is_running()


def test_an_engine_whose_messages_cannot_be_decoded_is_replaced(own_front: Front) -> None:
    pid = own_front.state.supervisor.pid
    answer = own_front.command("!garbage")
    assert answer.status_code == 503
    assert "cannot be decoded" in answer.json()["error"]["message"]
    own_front.await_ready()
    assert own_front.state.supervisor.pid != pid


def test_ctrl_c_in_the_terminal_does_not_reach_the_engine(own_front: Front) -> None:
    pid = own_front.state.supervisor.pid
    assert pid is not None
    assert os.getsid(pid) == pid != os.getsid(0)


def test_a_command_that_does_not_exist_is_reported_and_tried_again(tmp_path: Path) -> None:
    with running(command=[str(tmp_path / "nothing")]) as front:
        until(lambda: "could not be started" in front.state.client.down_reason, "the reason")
        until(lambda: front.state.supervisor.starts > 1, "another start")


def test_failed_starts_in_a_row_wait_longer_each_time() -> None:
    with running(exit=3) as front:
        front.state.supervisor._first_retry_seconds = 0.01
        until(lambda: front.state.supervisor.failed_starts >= 3, "three failed starts")
        waited = front.state.supervisor.retry_seconds()
        until(lambda: front.state.supervisor.failed_starts >= 5, "five failed starts")
        assert front.state.supervisor.retry_seconds() > waited


def test_an_engine_that_lost_its_device_is_replaced_and_the_reason_says_so() -> None:
    with running(exit=supervisor.EXIT_DEVICE_LOST) as front:
        until(lambda: "left its device unusable" in front.state.client.down_reason, "the reason")
        until(lambda: front.state.supervisor.starts > 1, "another start")


def test_retries_slow_down_to_a_limit_and_never_stop() -> None:
    with running(silent=True) as front:
        front.state.supervisor.failed_starts = 500
        assert front.state.supervisor.retry_seconds() == supervisor.SLOWEST_RETRY_SECONDS


def test_an_engine_that_has_run_long_restarts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "HEALTHY_SECONDS", 0.0)
    with running(exit=3) as front:
        until(lambda: front.state.supervisor.starts >= 2, "a second start")
        assert front.state.supervisor.failed_starts == 0
        assert front.state.supervisor.retry_seconds() == 0
