"""The engine's pause at its inbox: it is queued like a job, holds for a lease, and ends with a Resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import perf_counter_ns

import psutil
import pytest

from service.engine.inbox import Inbox
from service.engine.loop import Engine
from service.records import EngineSettings, EngineStatus, Outcome, Pause, Paused, Resume, Stop
from tests.engine.sockets import SocketPair, job
from tests.support.serving import until

LONG, SHORT = 600.0, 1e-9


def taken(inbox: Inbox) -> str | None:
    found = inbox.take()
    return found.id if found else None


def test_a_pause_is_queued_like_a_job_and_what_comes_after_it_waits(sockets: SocketPair) -> None:
    sockets.deliver(job("before"), Pause(id=1, lease_seconds=LONG), job("after"))
    assert taken(sockets.inbox) == "before"
    assert not sockets.inbox.paused
    assert sockets.silent()
    assert taken(sockets.inbox) is None
    assert sockets.inbox.paused
    assert sockets.receive(Paused) == Paused(id=1, holds=True)
    assert taken(sockets.inbox) is None
    sockets.deliver(Resume())
    assert taken(sockets.inbox) == "after"


def test_a_pause_ends_with_its_lease_where_it_is_not_prolonged(sockets: SocketPair) -> None:
    sockets.deliver(Pause(id=1, lease_seconds=SHORT), job("after"))
    sockets.inbox.take()
    assert sockets.receive(Paused) == Paused(id=1, holds=True)
    assert taken(sockets.inbox) == "after"


def test_a_pause_of_the_same_id_renews_the_lease_without_another_answer(sockets: SocketPair) -> None:
    sockets.deliver(Pause(id=1, lease_seconds=LONG))
    sockets.inbox.take()
    sockets.receive(Paused)
    sockets.deliver(Pause(id=1, lease_seconds=SHORT))
    assert not sockets.inbox.paused
    assert sockets.silent()


def test_a_pause_whose_lease_ran_out_is_not_renewed_and_the_front_is_notified(sockets: SocketPair) -> None:
    sockets.deliver(Pause(id=1, lease_seconds=SHORT))
    sockets.inbox.take()
    sockets.receive(Paused)
    sockets.deliver(Pause(id=1, lease_seconds=LONG))
    assert sockets.receive(Paused) == Paused(id=1, holds=False)
    assert not sockets.inbox.paused


def test_a_queued_pause_is_dropped_by_a_resume(sockets: SocketPair) -> None:
    sockets.deliver(Pause(id=1, lease_seconds=LONG), job("after"), Resume())
    assert taken(sockets.inbox) == "after"
    assert sockets.silent()


def drive(sockets: SocketPair, seen: dict[str, object]) -> None:
    """The front's side of a pause in which a job is sent; runs beside the engine."""
    try:
        while not getattr(sockets.receive(EngineStatus), "warm", False):
            pass
        sockets.send(job("first"))
        sockets.receive(Outcome)
        sockets.send(Pause(id=1, lease_seconds=LONG))
        sockets.receive(Paused)
        seen["began_ns"] = perf_counter_ns()
        sockets.send(job("during"))
        seen["silent"] = sockets.silent(800)
        seen["ended_ns"] = perf_counter_ns()
        sockets.send(Resume())
        seen["outcome"] = sockets.receive(Outcome)
    finally:
        sockets.send(Stop())


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals")
def test_a_paused_engine_serves_nothing_and_the_wait_is_queue(sockets: SocketPair, tmp_path: Path) -> None:
    settings = EngineSettings(
        address="", modes=["eager"], batch_sizes=[1], cache_folder=str(tmp_path), threads=1
    )
    engine = Engine(settings, sockets.inbox)
    seen: dict[str, object] = {}
    front = threading.Thread(target=drive, args=(sockets, seen))
    front.start()
    engine.run()
    front.join()
    assert seen["silent"]
    outcome = seen["outcome"]
    assert isinstance(outcome, Outcome)
    assert outcome.timings is not None
    paused_seconds = (int(seen["ended_ns"]) - int(seen["began_ns"])) / 1e9  # type: ignore[call-overload]
    assert outcome.timings.queue_seconds >= 0.9 * paused_seconds


SUSPENDED_CHILD = """
import os, signal
print(os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""

FRONT = f"""
import signal, subprocess, sys
from service.parent_death import owned
child = owned([sys.executable, "-c", {SUSPENDED_CHILD!r}], signal.SIGKILL)
subprocess.run(child, start_new_session=True)
"""


def test_a_suspended_child_ends_with_a_front_that_is_killed() -> None:
    front = subprocess.Popen([sys.executable, "-c", FRONT], stdout=subprocess.PIPE, text=True)
    assert front.stdout is not None
    child = psutil.Process(int(front.stdout.readline()))
    until(lambda: child.status() == psutil.STATUS_STOPPED, "the child to be suspended")
    os.kill(front.pid, signal.SIGKILL)
    front.wait()
    front.stdout.close()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the end of the child")
