"""The engine's inbox with the front's end of its socket, in one process."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns

import msgspec
import zmq

from service.engine.inbox import Inbox
from service.engine.local_inbox import local_job
from service.protocol.messages import Job, ToEngine, ToFront


class SocketPair:
    """Both ends of the IPC socket in one process."""

    def __init__(self, folder: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.front = context.socket(zmq.PAIR)
        self.front.bind(f"ipc://{folder / 'ipc'}")
        self.inbox = Inbox(f"ipc://{folder / 'ipc'}")

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
            assert self.front.poll(60_000), "no message arrived"
            message: ToFront = msgspec.msgpack.decode(self.front.recv(), type=ToFront)
            if isinstance(message, kind):
                return message

    def silent(self) -> bool:
        return not self.front.poll(20)


def job(identity: str) -> Job:
    fresh = local_job(identity, "eager", ["def mean(values):"], 2)
    return msgspec.structs.replace(fresh, sent_ns=perf_counter_ns())
