"""The front's end of an engine's socket, and a thread at that end that sends one job after another."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from time import perf_counter_ns

import msgspec
import zmq

from service.measure.rounds import Log
from service.protocol.messages import Job, Outcome, Stop, ToFront
from service.protocol.status import EngineStatus

POLL_MILLISECONDS = 100
END_SECONDS = 10.0
"""Longest wait for the thread once the engine has ended."""

_decode = msgspec.msgpack.Decoder(ToFront).decode
_encode = msgspec.msgpack.Encoder().encode


@contextmanager
def front_socket() -> Iterator[tuple[str, zmq.Socket[bytes]]]:
    """The front's end of the engine's socket, with its address."""
    with tempfile.TemporaryDirectory(prefix="launchbound-") as folder, zmq.Context() as context:
        address = f"ipc://{Path(folder) / 'engine.sock'}"
        socket = context.socket(zmq.PAIR)
        socket.bind(address)
        try:
            yield address, socket
        finally:
            socket.close(linger=0)


class JobSender:
    """Waits in a thread until the engine is warm, sends each job once the one before is done, then `Stop`.

    Whatever ends the thread, a Stop is sent, so that the engine ends too.
    """

    def __init__(self, front: zmq.Socket[bytes], jobs: Sequence[Job], log: Log) -> None:
        self._front = front
        self._jobs = jobs
        self._log = log
        self._sent = 0
        self._outcomes: list[Outcome] = []
        self._engine_ended = Event()
        self._error: Exception | None = None
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """The engine has ended: end the thread too, within END_SECONDS."""
        self._engine_ended.set()
        self._thread.join(END_SECONDS)

    def outcomes(self) -> list[Outcome]:
        """After `join`: one per job. Raises RuntimeError, with the cause, where some are missing."""
        answered = f"the engine answered {len(self._outcomes)} of {len(self._jobs)} jobs"
        if self._error is not None:
            raise RuntimeError(f"{answered}: {type(self._error).__name__}: {self._error}") from self._error
        if len(self._outcomes) < len(self._jobs):
            raise RuntimeError(f"{answered} and ended")
        return self._outcomes

    def _run(self) -> None:
        try:
            while len(self._outcomes) < len(self._jobs):
                # Looked at before the poll: what an ended engine had sent before is there to be received.
                ended = self._engine_ended.is_set()
                if self._front.poll(POLL_MILLISECONDS):
                    self._take(_decode(self._front.recv()))
                elif ended:
                    return
        except Exception as error:  # noqa: BLE001 - raised again by `end`, in the thread that waits for it
            self._error = error
        finally:
            # An engine that has ended takes nothing, and its socket may be gone.
            with suppress(zmq.Again):
                self._send(Stop())

    def _take(self, message: ToFront) -> None:
        self._log(f"an engine without a front, job {len(self._outcomes)} of {len(self._jobs)}")
        if isinstance(message, Outcome):
            self._outcomes.append(message)
        warm = isinstance(message, EngineStatus) and message.warm and self._sent == 0
        if (warm or isinstance(message, Outcome)) and self._sent < len(self._jobs):
            self._send(msgspec.structs.replace(self._jobs[self._sent], sent_ns=perf_counter_ns()))
            self._sent += 1

    def _send(self, message: Job | Stop) -> None:
        """Never waits. Raises zmq.Again where nobody is there to receive."""
        self._front.send(_encode(message), zmq.DONTWAIT)
