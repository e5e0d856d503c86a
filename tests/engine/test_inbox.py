"""What the inbox receives between two steps, its pause, and what the front hears of an engine at work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, perf_counter_ns
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from service.engine import inbox, loop
from service.engine.inbox import Inbox, LocalInbox, local_job
from service.engine.loop import announced
from service.frames import FrameStream, listen
from service.records import SERVING, Cancel, Doing, Job, Pause, Paused, Resume, ToEngine, ToFront, Token


class SocketPair:
    """Both ends of the IPC socket in one process."""

    def __init__(self, folder: Path) -> None:
        listener = listen(str(folder / "ipc"))
        self.inbox = Inbox(str(folder / "ipc"))
        self.front = FrameStream(listener.accept()[0])
        listener.close()
        self._frames: list[bytes] = []

    def send(self, *messages: ToEngine) -> None:
        for message in messages:
            self.front.send(msgspec.msgpack.encode(message))

    def deliver(self, *messages: ToEngine) -> None:
        """Send all of them, and have the inbox receive them."""
        for message in messages:
            self.send(message)
            self.inbox.receive(10_000)

    def receive(self, kind: type) -> ToFront:
        """The next message of this kind; others are skipped."""
        while True:
            if not self._frames:
                assert self.front.wait(60_000), "no message arrived"
                self._frames += self.front.receive()
            message: ToFront = msgspec.msgpack.decode(self._frames.pop(0), type=ToFront)
            if isinstance(message, kind):
                return message

    def silent(self, milliseconds: int = 20) -> bool:
        """Whether nothing but signs of life has arrived, or does within so long."""
        end = monotonic() + milliseconds / 1e3
        while (left := end - monotonic()) > 0 and self.front.wait(left * 1e3):
            self._frames += self.front.receive()
        self._frames = [
            frame
            for frame in self._frames
            if not isinstance(msgspec.msgpack.decode(frame, type=ToFront), Doing)
        ]
        return not self._frames

    def close(self) -> None:
        self.inbox.close()
        self.front.close()


def job(identity: str) -> Job:
    fresh = local_job(identity, "eager", ["def mean(values):"], 2)
    return msgspec.structs.replace(fresh, sent_ns=perf_counter_ns())


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[SocketPair]:
    made = SocketPair(tmp_path)
    yield made
    made.close()


def test_a_cancel_does_not_reach_a_later_job_of_the_same_id(sockets: SocketPair) -> None:
    sockets.deliver(job("a"), Cancel(id="a"))
    first = sockets.inbox.take()
    assert isinstance(first, Job)
    assert sockets.inbox.is_cancelled(first)
    assert sockets.inbox.take() is None
    sockets.deliver(job("a"))
    second = sockets.inbox.take()
    assert isinstance(second, Job)
    assert not sockets.inbox.is_cancelled(second)


def test_a_front_that_stalls_does_not_block_the_engine_and_gets_every_message(sockets: SocketPair) -> None:
    tokens = [Token(id="a", index=number, text="x" * 1000) for number in range(2000)]
    for token in tokens:
        sockets.inbox.send(token)
    assert sockets.inbox._stream.unsent
    received = []
    for _ in tokens:
        sockets.inbox.receive()
        received.append(sockets.receive(Token))
    assert received == tokens


@pytest.mark.parametrize("sends", [True, False])
def test_a_front_that_has_gone_is_a_stop(sockets: SocketPair, sends: bool) -> None:
    sockets.front.close()
    if sends:
        sockets.inbox.send(Token(id="a", index=0, text="x"))
    else:
        sockets.inbox.receive(10_000)
    assert sockets.inbox.stopped


def test_a_job_joins_those_that_run_and_each_can_be_cancelled_until_it_has_left(sockets: SocketPair) -> None:
    sockets.deliver(job("a"), job("b"), job("c"))
    first, following = sockets.inbox.take(), sockets.inbox.next_job
    second = sockets.inbox.join()
    assert first is not None
    assert following is second
    assert second.id == "b"
    sockets.deliver(Cancel(id="a"), Cancel(id="b"), Cancel(id="c"))
    assert [sockets.inbox.is_cancelled(one) for one in (first, second)] == [True, True]
    sockets.inbox.left(second)
    assert [sockets.inbox.is_cancelled(one) for one in (first, second)] == [True, False]
    third = sockets.inbox.take()
    assert third is not None
    assert [sockets.inbox.is_cancelled(one) for one in (first, third)] == [False, True]


def taken(inbox: Inbox) -> str | None:
    found = inbox.take()
    return found.id if found else None


def test_a_pause_is_queued_like_a_job_and_what_comes_after_it_waits(sockets: SocketPair) -> None:
    sockets.deliver(job("before"), Pause(id=1), job("after"))
    assert taken(sockets.inbox) == "before"
    assert not sockets.inbox.paused
    assert sockets.silent()
    assert taken(sockets.inbox) is None
    assert sockets.inbox.paused
    assert sockets.receive(Paused) == Paused(id=1)
    assert taken(sockets.inbox) is None
    sockets.deliver(Resume())
    assert taken(sockets.inbox) == "after"


def test_a_queued_pause_is_dropped_by_a_resume(sockets: SocketPair) -> None:
    sockets.deliver(Pause(id=1), job("after"), Resume())
    assert taken(sockets.inbox) == "after"
    assert sockets.silent()


COMPILING = Doing(what="warming up compiled", limit_seconds=1800.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the inbox's clock forward by seconds; it stands still otherwise."""
    now = [10**18]

    def forward(seconds: float) -> None:
        now[0] += round(seconds * 1e9)

    monkeypatch.setattr(inbox, "perf_counter_ns", lambda: now[0])
    return forward


def heard(sockets: SocketPair) -> list[Doing]:
    """All signs of life that have arrived since."""
    frames = sockets.front.receive() if sockets.front.wait(20) else []
    return [msgspec.msgpack.decode(frame, type=Doing) for frame in frames]


def test_an_engine_that_serves_is_heard_of_once_a_second_however_often_it_looks(
    sockets: SocketPair, clock: Callable[[float], None]
) -> None:
    for _ in range(300):
        sockets.inbox.receive()
        sockets.inbox.take()
        clock(0.01)
    assert [doing.what for doing in heard(sockets)] == [SERVING] * 3


def test_what_is_announced_is_heard_at_once_and_holds_until_the_engine_serves_again(
    sockets: SocketPair, clock: Callable[[float], None]
) -> None:
    sockets.inbox.receive()
    sockets.inbox.announce(COMPILING)
    assert heard(sockets)[-1] == COMPILING
    clock(2.0)
    sockets.inbox.receive()
    assert heard(sockets) == [COMPILING]
    sockets.inbox.take()
    clock(2.0)
    sockets.inbox.receive()
    assert [doing.what for doing in heard(sockets)] == [SERVING]


def test_a_model_with_slow_steps_has_as_long_for_one_and_no_model_less_than_the_least(
    sockets: SocketPair, clock: Callable[[float], None]
) -> None:
    limits = []
    for seconds in (0.1, 90.0):
        sockets.inbox.expect_steps_of(seconds)
        sockets.inbox.take()
        clock(2.0)
        sockets.inbox.receive()
        limits += [doing.limit_seconds for doing in heard(sockets)]
    assert limits == [inbox.STEP_LIMIT_SECONDS, 90.0]


class Listening(LocalInbox):
    """Keeps what is announced, in order."""

    def __init__(self) -> None:
        super().__init__([])
        self.said: list[Doing] = []
        self.expected: float | None = None

    def announce(self, doing: Doing) -> None:
        self.said.append(doing)

    def expect_steps_of(self, seconds: float) -> None:
        self.expected = seconds


def test_each_piece_of_a_warm_up_is_announced_before_it_begins() -> None:
    inbox, order = Listening(), []
    warmup: Any = SimpleNamespace(doing="warming up", reference_seconds=5.0)

    def work() -> Iterator[None]:
        for name in ("eager", "compiled"):
            order.append((name, len(inbox.said)))
            yield

    for _ in announced(work(), warmup, inbox):
        continue
    assert order == [("eager", 1), ("compiled", 2)]
    assert {doing.limit_seconds for doing in inbox.said} == {loop.PIECE_SECONDS}
    assert inbox.expected == loop.SLOWER * 5.0


def test_the_engine_process_connects_and_speaks_before_it_imports_torch() -> None:
    code = "import sys; import service.engine.process; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
