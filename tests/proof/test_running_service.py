"""An engine whose front is the selftest: what is taken of its answers, and how its end is told."""

from __future__ import annotations

from contextlib import closing
from threading import Thread

import pytest

from service.engine.inbox import Inbox
from service.proof.running_service import BareEngine, FrontSocket
from service.records import Doing, Outcome, PhaseTimings, Timings


def test_one_job_after_another_is_sent_and_what_else_arrives_is_passed_over() -> None:
    with closing(FrontSocket()) as front:
        inbox = Inbox(front.address)

        def engine() -> None:
            for _ in range(2):
                while (job := inbox.take()) is None:
                    inbox.receive(50)
                inbox.announce(Doing(what="a job", limit_seconds=1.0))
                inbox.send(outcome(job.id, timings()))

        thread = Thread(target=engine, daemon=True)
        thread.start()
        front.receive()  # accepts the connection
        bare = BareEngine(front)
        assert [bare.overhead_seconds("eager") for _ in range(2)] == [pytest.approx(2e-3)] * 2
        thread.join()
        inbox.close()


def test_a_job_that_did_not_run_is_an_error_with_its_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(FrontSocket()) as front:
        monkeypatch.setattr(front, "send", lambda job: None)
        monkeypatch.setattr(front, "receive", lambda: [outcome("a", None)])
        with pytest.raises(RuntimeError, match="job a did not run"):
            BareEngine(front).overhead_seconds("eager")


def test_an_engine_that_ends_meanwhile_is_an_error() -> None:
    with closing(FrontSocket()) as front:
        inbox = Inbox(front.address)
        front.receive()  # accepts the connection
        inbox.close()
        with pytest.raises(RuntimeError, match=r"the engine ended \(a job in eager\)"):
            BareEngine(front).overhead_seconds("eager")


UNKNOWN = dict.fromkeys(("dispatch_seconds", "device_span_seconds", "kernel_seconds", "sync_wait_seconds"))


def timings() -> Timings:
    prefill, decode = (PhaseTimings(steps=1, wall_seconds=wall, **UNKNOWN) for wall in (2e-3, 5e-3))
    return Timings(
        queue_seconds=0.0, prefill=prefill, decode=decode, tokenise_seconds=1e-3, involuntary_switches=0,
        dispatch_source=None, kernel_source=None, taken_ns=0, first_token_ns=None, done_ns=10_000_000,
    )  # fmt: skip


def outcome(identity: str, measured: Timings | None) -> Outcome:
    return Outcome(
        id=identity, mode="eager", effective="eager", reason=None, kind="ok", batch_size=1, batch_bucket=1,
        timings=measured,
    )  # fmt: skip
