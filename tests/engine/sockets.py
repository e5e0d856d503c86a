"""The engine's inbox with the front's end of its socket, in one process."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, perf_counter_ns

import msgspec

from service.engine.inbox import Inbox, local_job
from service.frames import FrameStream, listen
from service.records import Doing, Job, ToEngine, ToFront


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
