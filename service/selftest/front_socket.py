"""The front's end of an engine's socket, and a thread at that end that sends one job after another."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from time import perf_counter_ns

import msgspec

from service.measure.rounds import Log
from service.protocol.frames import FrameStream, listen
from service.protocol.messages import Job, Outcome, Stop, ToEngine, ToFront
from service.protocol.status import EngineStatus

POLL_SECONDS = 0.1
END_SECONDS = 10.0
"""Longest wait for the thread once the engine has ended."""

_decode = msgspec.msgpack.Decoder(ToFront).decode
_encode = msgspec.msgpack.Encoder().encode


class FrontSocket:
    """The front's end, which an engine connects to at its own time."""

    def __init__(self, address: str) -> None:
        self._listener = listen(address)
        self._listener.settimeout(POLL_SECONDS)
        self._stream: FrameStream | None = None

    def receive(self) -> list[ToFront]:
        """The messages that arrive next; none where none has arrived within POLL_SECONDS.

        Raises EOFError once the engine has closed its end and all are received.
        """
        stream = self._connected()
        if stream is None or not stream.wait(POLL_SECONDS * 1e3):
            return []
        return [_decode(frame) for frame in stream.receive()]

    def send(self, message: ToEngine) -> None:
        """Never waits. Raises ConnectionError where no engine is there to receive."""
        if self._stream is None:
            raise ConnectionError("no engine has connected")
        self._stream.send(_encode(message))

    def close(self) -> None:
        """Disconnect."""
        self._listener.close()
        if self._stream is not None:
            self._stream.close()

    def _connected(self) -> FrameStream | None:
        if self._stream is None:
            try:
                self._stream = FrameStream(self._listener.accept()[0])
            except TimeoutError:
                return None
        return self._stream


@contextmanager
def front_socket() -> Iterator[tuple[str, FrontSocket]]:
    """The front's end of the engine's socket, with its address."""
    with tempfile.TemporaryDirectory(prefix="launchbound-") as folder:
        address = str(Path(folder) / "engine.sock")
        front = FrontSocket(address)
        try:
            yield address, front
        finally:
            front.close()


class JobSender:
    """Waits in a thread until the engine is warm, sends each job once the one before is done, then `Stop`.

    Whatever ends the thread, a Stop is sent, so that the engine ends too.
    """

    def __init__(self, front: FrontSocket, jobs: Sequence[Job], log: Log) -> None:
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
                messages = self._front.receive()
                for message in messages:
                    self._take(message)
                if ended and not messages:
                    return
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001 - raised again by `end`, in the thread that waits for it
            self._error = error
        finally:
            # An engine that has ended takes nothing, and its socket may be gone.
            with suppress(ConnectionError):
                self._front.send(Stop())

    def _take(self, message: ToFront) -> None:
        self._log(f"an engine without a front, job {len(self._outcomes)} of {len(self._jobs)}")
        if isinstance(message, Outcome):
            self._outcomes.append(message)
        warm = isinstance(message, EngineStatus) and message.warm and self._sent == 0
        if (warm or isinstance(message, Outcome)) and self._sent < len(self._jobs):
            self._front.send(msgspec.structs.replace(self._jobs[self._sent], sent_ns=perf_counter_ns()))
            self._sent += 1
