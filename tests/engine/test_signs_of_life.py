"""What the front hears of an engine at work, and that it hears no more than that."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from service.engine import inbox, loop
from service.engine.inbox import LocalInbox, local_job
from service.engine.loop import Engine, announced
from service.engine.warmup import Warmup
from service.records import SERVING, Doing
from tests.engine.serving import PROMPT, settings
from tests.engine.sockets import SocketPair, job

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


def test_nothing_is_heard_of_an_engine_that_does_not_look(
    sockets: SocketPair, clock: Callable[[float], None]
) -> None:
    sockets.inbox.receive()
    heard(sockets)
    clock(100.0)
    assert heard(sockets) == []


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


def test_a_job_does_not_begin_under_the_limits_of_what_was_announced_before_it(
    sockets: SocketPair, clock: Callable[[float], None]
) -> None:
    sockets.inbox.announce(COMPILING)
    sockets.deliver(job("a"))
    sockets.inbox.receive()
    heard(sockets)
    sockets.inbox.take()
    assert [(doing.what, doing.busy_limit_seconds) for doing in heard(sockets)] == [
        (SERVING, inbox.STEP_BUSY_SECONDS)
    ]


def test_many_short_pieces_of_one_kind_are_one_message_a_second(
    sockets: SocketPair, clock: Callable[[float], None]
) -> None:
    for _ in range(100):
        sockets.inbox.announce(COMPILING)
        sockets.inbox.receive()
        sockets.inbox.take()
        clock(0.005)
    assert len(heard(sockets)) == 1


def test_a_model_with_slow_steps_has_as_long_for_one_and_no_model_less_than_the_least(
    sockets: SocketPair, clock: Callable[[float], None]
) -> None:
    limits = []
    for seconds, busy_seconds in ((0.1, 0.1), (90.0, 70.0)):
        sockets.inbox.expect_steps_of(seconds, busy_seconds)
        sockets.inbox.take()
        clock(2.0)
        sockets.inbox.receive()
        limits += [(doing.limit_seconds, doing.busy_limit_seconds) for doing in heard(sockets)]
    assert limits == [(inbox.STEP_LIMIT_SECONDS, inbox.STEP_BUSY_SECONDS), (90.0, 70.0)]


def test_a_running_job_is_heard_of_between_its_steps(
    sockets: SocketPair, clock: Callable[[float], None]
) -> None:
    sockets.inbox.receive()
    sockets.deliver(job("a"))
    sockets.inbox.take()
    heard(sockets)
    clock(1.5)
    sockets.inbox.receive()
    assert [doing.what for doing in heard(sockets)] == [SERVING]


@dataclass
class Told(LocalInbox):
    """Keeps what is announced, in order."""

    requests: list[object] = field(default_factory=list)
    said: list[Doing] = field(default_factory=list)
    expected: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        super().__init__([])

    def announce(self, doing: Doing) -> None:
        self.said.append(doing)

    def expect_steps_of(self, seconds: float, busy_seconds: float) -> None:
        self.expected = (seconds, busy_seconds)

    def take(self) -> object:  # type: ignore[override]
        return self.requests.pop(0) if self._warm and self.requests else None

    @property
    def stopped(self) -> bool:
        return self._warm and not self.requests


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals")
def test_an_engine_announces_its_warm_up_and_a_profiled_request(tmp_path: Path) -> None:
    told = Told(requests=[local_job("a", "eager", [PROMPT], 2, profile=True, sent_ns=1)])
    Engine(settings(tmp_path, batch_sizes=[1]), told).run()
    said = [doing.what for doing in told.said]
    for expected in ("warming up eager", "warming up inference_mode", "profiling a request"):
        assert expected in said
    assert said.index("warming up inference_mode") < said.index("profiling a request")


def test_each_piece_of_a_warm_up_is_announced_before_it_begins() -> None:
    class Stages:
        doing = "warming up eager"
        reference_seconds = 5.0
        reference_busy_seconds = 3.0

    stages, told, order = Stages(), Told(), []

    def work() -> object:
        for name in ("eager", "compiled"):
            order.append((name, len(told.said)))
            stages.doing = f"warming up {name}"
            yield

    warmup: Warmup = stages  # type: ignore[assignment]
    for _ in announced(work(), warmup, told):  # type: ignore[arg-type]
        continue
    assert order == [("eager", 1), ("compiled", 2)]
    assert {doing.limit_seconds for doing in told.said} == {loop.PIECE_SECONDS}
    assert told.expected == (loop.SLOWER * 5.0, loop.SLOWER * 3.0)


def test_the_engine_process_connects_and_speaks_before_it_imports_torch() -> None:
    code = "import sys; import service.engine.process; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
