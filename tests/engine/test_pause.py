"""The engine's rest at its inbox: it stands in line like a job, holds by leases, and ends as told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns

import msgspec
import psutil
import pytest
import torch
import zmq

from service.engine.inbox import Inbox
from service.engine.local_inbox import local_job
from service.engine.loop import Engine
from service.protocol.messages import (
    EngineSettings,
    Job,
    Outcome,
    Pause,
    Paused,
    Resume,
    Stop,
    ToEngine,
    ToFront,
)
from service.protocol.status import EngineStatus
from tests.support.serving import until

LONG, SHORT = 600.0, 1e-9


class Border:
    """Both ends of a border in one process."""

    def __init__(self, folder: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.front = context.socket(zmq.PAIR)
        self.front.bind(f"ipc://{folder / 'border'}")
        self.inbox = Inbox(f"ipc://{folder / 'border'}")

    def tell(self, *messages: ToEngine) -> None:
        for message in messages:
            self.front.send(msgspec.msgpack.encode(message))

    def deliver(self, *messages: ToEngine) -> None:
        """Tell, and have the inbox take in, all of them."""
        for message in messages:
            self.tell(message)
            self.inbox.receive(10_000)

    def hear(self, kind: type) -> ToFront:
        """The next message of this kind."""
        while True:
            assert self.front.poll(60_000), "nothing was heard"
            message: ToFront = msgspec.msgpack.decode(self.front.recv(), type=ToFront)
            if isinstance(message, kind):
                return message

    def silent(self) -> bool:
        return not self.front.poll(20)


@pytest.fixture
def border(tmp_path: Path) -> Iterator[Border]:
    with zmq.Context() as context:
        made = Border(tmp_path, context)
        yield made
        made.inbox.close()
        made.front.close(linger=0)


def job(identity: str) -> Job:
    fresh = local_job(identity, "eager", ["def mean(values):"], 2)
    return msgspec.structs.replace(fresh, sent_ns=perf_counter_ns())


def taken(inbox: Inbox) -> str | None:
    found = inbox.take()
    return found.id if found else None


def test_a_pause_stands_in_line_like_a_job_and_what_comes_after_it_waits(border: Border) -> None:
    border.deliver(job("before"), Pause(id=1, lease_seconds=LONG), job("after"))
    assert taken(border.inbox) == "before"
    assert not border.inbox.paused
    assert border.silent()
    assert taken(border.inbox) is None
    assert border.inbox.paused
    assert border.hear(Paused) == Paused(id=1, holds=True)
    assert taken(border.inbox) is None
    border.deliver(Resume())
    assert taken(border.inbox) == "after"


def test_a_rest_ends_by_itself_when_the_front_says_nothing_more(border: Border) -> None:
    border.deliver(Pause(id=1, lease_seconds=SHORT), job("after"))
    border.inbox.take()
    assert border.hear(Paused) == Paused(id=1, holds=True)
    assert taken(border.inbox) == "after"


def test_a_pause_of_the_same_id_prolongs_the_rest_without_another_answer(border: Border) -> None:
    border.deliver(Pause(id=1, lease_seconds=LONG))
    border.inbox.take()
    border.hear(Paused)
    border.deliver(Pause(id=1, lease_seconds=SHORT))
    assert not border.inbox.paused
    assert border.silent()


def test_a_rest_that_ran_out_is_not_prolonged_but_told(border: Border) -> None:
    border.deliver(Pause(id=1, lease_seconds=SHORT))
    border.inbox.take()
    border.hear(Paused)
    border.deliver(Pause(id=1, lease_seconds=LONG))
    assert border.hear(Paused) == Paused(id=1, holds=False)
    assert not border.inbox.paused


def test_a_pause_that_is_no_longer_wanted_does_not_begin(border: Border) -> None:
    border.deliver(Pause(id=1, lease_seconds=LONG), job("after"), Resume())
    assert taken(border.inbox) == "after"
    assert border.silent()


@pytest.fixture
def globals_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.compiler.set_stance("default")
    torch.set_num_threads(threads)


def ask(border: Border, seen: dict[str, object]) -> None:
    """The front's side of a rest in which a job is sent; runs beside the engine."""
    try:
        while not getattr(border.hear(EngineStatus), "warm", False):
            pass
        border.tell(job("first"))
        border.hear(Outcome)
        border.tell(Pause(id=1, lease_seconds=LONG))
        border.hear(Paused)
        seen["began_ns"] = perf_counter_ns()
        border.tell(job("during"))
        seen["refreshed"] = len(seen["refreshes"])  # type: ignore[arg-type]
        seen["silent"] = not border.front.poll(800)
        seen["refreshed_after"] = len(seen["refreshes"])  # type: ignore[arg-type]
        seen["ended_ns"] = perf_counter_ns()
        border.tell(Resume())
        seen["outcome"] = border.hear(Outcome)
    finally:
        border.tell(Stop())


@pytest.mark.usefixtures("globals_as_before")
def test_an_engine_at_rest_neither_serves_nor_calibrates_and_the_wait_is_queue(
    border: Border, tmp_path: Path
) -> None:
    settings = EngineSettings(
        address="", modes=["eager"], batch_sizes=[1], cache_folder=str(tmp_path), threads=1
    )
    engine = Engine(settings, border.inbox)
    refreshes: list[int] = []
    refresh = engine.parts.calibration.refresh

    def counted(wanted: Callable[[], bool]) -> float:
        refreshes.append(1)
        refresh(wanted)
        return 0.0  # as if it took no time, so that every idle moment would have one

    engine.parts.calibration.refresh = counted  # type: ignore[method-assign]
    seen: dict[str, object] = {"refreshes": refreshes}
    front = threading.Thread(target=ask, args=(border, seen))
    front.start()
    engine.run()
    front.join()
    assert seen["refreshed"] == seen["refreshed_after"]
    assert refreshes
    assert seen["silent"]
    outcome = seen["outcome"]
    assert isinstance(outcome, Outcome)
    assert outcome.timings is not None
    rested = (int(seen["ended_ns"]) - int(seen["began_ns"])) / 1e9  # type: ignore[call-overload]
    assert outcome.timings.queue_seconds >= 0.9 * rested


SUSPENDED_CHILD = """
import os, signal
from service.protocol.parent_death import die_with_parent
die_with_parent(signal.SIGKILL)
print(os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""

FRONT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {SUSPENDED_CHILD!r}], start_new_session=True)
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
