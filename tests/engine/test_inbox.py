"""What the inbox receives between two steps, and what it keeps of cancellations."""

from __future__ import annotations

from service.records import Cancel, Job, Pause, Token
from tests.engine.sockets import SocketPair, job


def test_a_cancel_counts_once_it_is_received_and_the_question_receives_nothing(sockets: SocketPair) -> None:
    running = job("a")
    sockets.deliver(running)
    assert sockets.inbox.take() == running
    sockets.send(Cancel(id="a"))
    assert sockets.inbox._stream.wait(10_000)
    assert not any(sockets.inbox.is_cancelled(running) for _ in range(4))
    sockets.inbox.receive()
    assert sockets.inbox.is_cancelled(running)


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


def test_a_cancel_that_comes_after_its_job_has_ended_does_not_reach_a_job_of_the_same_id_behind_it(
    sockets: SocketPair,
) -> None:
    sockets.deliver(job("a"))
    assert sockets.inbox.take() is not None
    assert sockets.inbox.take() is None
    sockets.send(Cancel(id="a"), job("a"))
    sockets.inbox.receive(10_000)
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


def test_a_front_that_has_gone_is_a_stop(sockets: SocketPair) -> None:
    sockets.deliver(job("a"))
    sockets.front.close()
    assert not sockets.inbox.stopped
    sockets.inbox.receive(10_000)
    assert sockets.inbox.stopped


def test_sending_to_a_front_that_has_gone_is_a_stop(sockets: SocketPair) -> None:
    sockets.front.close()
    sockets.inbox.send(Token(id="a", index=0, text="x"))
    assert sockets.inbox.stopped


def test_a_cancel_of_an_unknown_job_is_forgotten(sockets: SocketPair) -> None:
    sockets.deliver(Cancel(id="a"))
    assert not sockets.inbox.is_cancelled(job("a"))


def test_a_job_joins_those_that_run_and_each_can_be_cancelled_until_it_has_left(sockets: SocketPair) -> None:
    sockets.deliver(job("a"), job("b"), job("c"))
    first = sockets.inbox.take()
    assert isinstance(first, Job)
    assert sockets.inbox.next_job is not None
    assert sockets.inbox.next_job.id == "b"
    second = sockets.inbox.join()
    sockets.deliver(Cancel(id="a"), Cancel(id="b"), Cancel(id="c"))
    assert sockets.inbox.is_cancelled(first)
    assert sockets.inbox.is_cancelled(second)
    sockets.inbox.left(second)
    sockets.inbox.receive()
    assert not sockets.inbox.is_cancelled(second)
    assert sockets.inbox.is_cancelled(first)
    third = sockets.inbox.take()
    assert isinstance(third, Job)
    assert sockets.inbox.is_cancelled(third)
    assert not sockets.inbox.is_cancelled(first)


def test_who_waits_behind_a_pause_is_not_the_next(sockets: SocketPair) -> None:
    sockets.deliver(job("a"), Pause(id=1, lease_seconds=60.0), job("b"))
    assert sockets.inbox.take() is not None
    assert sockets.inbox.next_job is None
    assert not sockets.inbox.idle
    assert sockets.inbox.take() is None  # the pause begins
    assert sockets.inbox.next_job is None
