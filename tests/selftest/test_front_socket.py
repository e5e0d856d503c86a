"""The thread that sends jobs to an engine: it ends with the engine, whatever ended that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from service.engine.inbox import Inbox
from service.engine.local_inbox import local_job
from service.protocol.messages import EngineSettings, Outcome
from service.selftest import engine_overhead, front_socket
from service.selftest.engine_overhead import overhead_seconds
from service.selftest.front_socket import JobSender


class MadeUpVariants:
    """What `overhead_seconds` takes of `Variants`."""

    modes = ("eager",)
    settings = EngineSettings(address="", modes=["eager"], batch_sizes=[1], linears="aten", cache_folder="")

    @contextmanager
    def isolated(self) -> Iterator[None]:
        yield


def measure(monkeypatch: pytest.MonkeyPatch, run: Callable[[Inbox], None]) -> dict[str, float]:
    """`overhead_seconds` with an engine that does `run` with its inbox."""

    class MadeUpEngine:
        def __init__(self, settings: EngineSettings, inbox: Inbox) -> None:
            self._inbox = inbox

        def run(self) -> None:
            run(self._inbox)

    monkeypatch.setattr(engine_overhead, "Engine", MadeUpEngine)
    return overhead_seconds(MadeUpVariants(), lambda text: None)  # type: ignore[arg-type]


def test_what_the_engine_raises_is_raised_and_nothing_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(inbox: Inbox) -> None:
        raise ValueError("no such core")

    with pytest.raises(ValueError, match="no such core"):
        measure(monkeypatch, run)


def test_an_engine_that_ends_before_its_last_job_is_an_error_that_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RuntimeError, match="answered 0 of 20 jobs and ended"):
        measure(monkeypatch, lambda inbox: None)


def test_a_thread_that_breaks_stops_the_engine_and_its_error_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raising(message: bytes) -> object:
        raise ValueError("not a message")

    def run(inbox: Inbox) -> None:
        inbox.send(outcome("first"))
        while not inbox.stopped:
            inbox.receive(50)

    monkeypatch.setattr(front_socket, "_decode", raising)
    with pytest.raises(RuntimeError, match="answered 0 of 20 jobs: ValueError: not a message"):
        measure(monkeypatch, run)


def outcome(identity: str) -> Outcome:
    return Outcome(
        id=identity, mode="eager", effective="eager", reason=None, kind="ok", batch_size=1, batch_bucket=1
    )


def test_outcomes_that_an_engine_sent_before_it_ended_are_received() -> None:
    jobs = [local_job(name, "eager", ["x"], 1) for name in ("a", "b")]
    with front_socket.front_socket() as (address, front):
        sender = JobSender(front, jobs, lambda text: None)
        inbox = Inbox(address)
        for job in jobs:
            inbox.send(outcome(job.id))
        sender.start()
        sender.join()
        assert [found.id for found in sender.outcomes()] == ["a", "b"]
        inbox.close()
