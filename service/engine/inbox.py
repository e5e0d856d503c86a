"""The engine's end of the IPC socket: messages received, in order, and messages sent back."""

from __future__ import annotations

import select
from collections import deque
from time import perf_counter_ns

import msgspec
import zmq

from service.protocol.messages import Calibrate, Cancel, Job, Pause, Paused, Resume, Stop, ToEngine, ToFront
from service.protocol.placement import threads_now


class Inbox:
    """A PAIR socket to the front that never blocks while there is work."""

    def __init__(self, address: str) -> None:
        before = threads_now()
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        # Without a high-water mark a front that stalls would block the engine in `send`.
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.connect(address)
        self._signal = select.poll()
        self._signal.register(self._socket, select.POLLIN)
        self._sent = False
        self.own_threads = threads_now() - before
        self._decode = msgspec.msgpack.Decoder(ToEngine).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._waiting: deque[Job | Pause | Calibrate] = deque()
        self._pause_id = 0
        self._paused_until_ns = 0
        self._running_id: str | None = None
        self._cancelled: set[str] = set()
        self.stopped = False

    def receive(self, timeout_milliseconds: int = 0) -> None:
        """Receive what has arrived, waiting up to `timeout_milliseconds` for a first message."""
        self._sent = False
        if timeout_milliseconds and not self._socket.poll(timeout_milliseconds):
            return
        while int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
            self._handle(self._decode(self._socket.recv()))
        if self._cancelled:
            waiting = {job.id for job in self._waiting if isinstance(job, Job)}
            self._cancelled &= waiting | {self._running_id or ""}

    def poll(self) -> None:
        """Receive what has arrived, for between two steps: where nothing has, it costs one system call.

        Polling the descriptor is ten times cheaper than querying the socket. A send may have consumed the
        descriptor's signal, so after one the socket itself is queried.
        """
        if self._sent or self._signal.poll(0):
            self.receive()

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, Job | Calibrate):
            self._waiting.append(message)
        elif isinstance(message, Cancel):
            self._cancelled.add(message.id)
        elif isinstance(message, Pause):
            self._pause(message)
        elif isinstance(message, Resume):
            self._paused_until_ns = 0
            self._waiting = deque(waiting for waiting in self._waiting if not isinstance(waiting, Pause))
        elif isinstance(message, Stop):
            self.stopped = True

    def take(self) -> Job | Calibrate | None:
        """What has waited longest; a job is from now on the running one. None while paused.

        A Pause is queued like a job. When it reaches the head of the queue, the pause begins and `Paused` is
        sent.
        """
        if self.paused:
            return None
        first = self._waiting.popleft() if self._waiting else None
        if isinstance(first, Pause):
            self._begin_pause(first)
            first = None
        self._running_id = first.id if isinstance(first, Job) else None
        return first

    @property
    def paused(self) -> bool:
        """Whether a pause is in force: the engine then neither serves nor calibrates."""
        return perf_counter_ns() < self._paused_until_ns

    def _pause(self, pause: Pause) -> None:
        if pause.id != self._pause_id:
            self._waiting.append(pause)
        elif self.paused:
            self._begin_pause(pause)
        else:
            self.send(Paused(id=pause.id, holds=False))

    def _begin_pause(self, pause: Pause) -> None:
        begins = pause.id != self._pause_id
        self._pause_id = pause.id
        self._paused_until_ns = perf_counter_ns() + round(pause.lease_seconds * 1e9)
        if begins:
            self.send(Paused(id=pause.id, holds=True))

    @property
    def idle(self) -> bool:
        """Whether no received message waits for the engine."""
        return not self._waiting

    def is_cancelled(self, job: Job) -> bool:
        """Whether a Cancel of `job`, which waits or runs, has been received."""
        return job.id in self._cancelled

    def send(self, message: ToFront) -> None:
        """Queue `message` for ZeroMQ's I/O thread; does not block."""
        self._socket.send(self._encode(message))
        self._sent = True

    def close(self) -> None:
        """Deliver what was sent, then disconnect."""
        self._socket.close(linger=1000)
        self._context.term()
