"""What the inbox receives between two steps, and what it keeps of cancellations."""

from __future__ import annotations

from service.protocol.messages import Cancel, Token
from tests.engine.sockets import SocketPair, job


def test_a_cancel_counts_once_it_is_received_and_the_question_receives_nothing(sockets: SocketPair) -> None:
    running = job("a")
    sockets.deliver(running)
    assert sockets.inbox.take() == running
    sockets.send(Cancel(id="a"))
    assert sockets.inbox._signal.poll(10_000)
    assert not any(sockets.inbox.is_cancelled(running) for _ in range(4))
    sockets.inbox.poll()
    assert sockets.inbox.is_cancelled(running)


def test_a_poll_after_a_send_receives_although_the_signal_may_be_consumed(sockets: SocketPair) -> None:
    running = job("a")
    sockets.deliver(running)
    sockets.inbox.take()
    sockets.send(Cancel(id="a"))
    assert sockets.inbox._signal.poll(10_000)
    sockets.inbox.send(Token(id="a", index=0, text="x"))
    sockets.inbox.poll()
    assert sockets.inbox.is_cancelled(running)


def test_a_cancel_of_an_unknown_job_is_forgotten(sockets: SocketPair) -> None:
    sockets.deliver(Cancel(id="a"))
    assert not sockets.inbox.is_cancelled(job("a"))
