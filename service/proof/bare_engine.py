"""An engine process without a service: this process is its front, and sends it one job after another."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import monotonic, perf_counter_ns

import msgspec

from service.engine.local_inbox import local_job
from service.frames import FrameStream, accept, listen
from service.machine import children_on
from service.measure.rounds import Log
from service.parent_death import owned
from service.records import EngineSettings, EngineStatus, Outcome, Stop, ToEngine, ToFront

PROMPT = "def mean(values):\n    total = 0\n    for value in values:\n"
NEW_TOKENS = 32
"""The request that all checks send, over HTTP and in process alike."""

WARM_SECONDS = 600.0
JOB_SECONDS = 60.0
"""Longest wait for an engine to be warm, and for one job."""

STOP_SECONDS = 10.0
POLL_SECONDS = 0.1

_decode = msgspec.msgpack.Decoder(ToFront).decode
_encode = msgspec.msgpack.Encoder().encode


class FrontSocket:
    """The front's end of an engine's socket, which an engine connects to at its own time."""

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

    def _connected(self) -> FrameStream | None:
        if self._stream is None:
            try:
                self._stream = accept(self._listener)
            except TimeoutError:
                return None
        return self._stream

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


@contextmanager
def front_socket() -> Iterator[tuple[str, FrontSocket]]:
    """The front's end of the engine's socket, with its address."""
    address = f"launchbound-{secrets.token_hex(16)}-selftest"
    front = FrontSocket(address)
    try:
        yield address, front
    finally:
        front.close()


class BareEngine:
    """A warm engine at the other end of `front`, which does one job at a time."""

    def __init__(self, front: FrontSocket) -> None:
        self._front = front
        self._numbers = count()

    def overhead_seconds(self, mode: str) -> float:
        """Run one job in `mode`: what it took between its arrival and its end beside steps and tokenising.

        Raises RuntimeError where it was not done.
        """
        job = local_job(f"overhead-{next(self._numbers)}", mode, [PROMPT], NEW_TOKENS, ignore_eos=True)
        what = f"a job in {mode}"
        try:
            self._front.send(msgspec.structs.replace(job, sent_ns=perf_counter_ns()))
        except ConnectionError as error:
            raise RuntimeError(f"the engine ended ({what})") from error
        outcome = self._await(lambda message: isinstance(message, Outcome), JOB_SECONDS, what)
        assert isinstance(outcome, Outcome)
        timings = outcome.timings
        if timings is None:
            raise RuntimeError(f"job {outcome.id} did not run: {outcome.problem}")
        walls = (timings.prefill.wall_seconds or 0.0) + (timings.decode.wall_seconds or 0.0)
        return (timings.done_ns - timings.taken_ns) / 1e9 - walls - timings.tokenise_seconds

    def await_warm(self, log: Log) -> None:
        """Return once it is. Raises RuntimeError where it ends first, or takes WARM_SECONDS."""

        def is_warm(message: ToFront) -> bool:
            log("an engine without a service, until it is warm")
            return isinstance(message, EngineStatus) and message.warm

        self._await(is_warm, WARM_SECONDS, "until it is warm")

    def _await(self, wanted: Callable[[ToFront], bool], seconds: float, what: str) -> ToFront:
        began = monotonic()
        while monotonic() - began < seconds:
            try:
                messages = self._front.receive()
            except EOFError as error:
                raise RuntimeError(f"the engine ended ({what})") from error
            found = next(filter(wanted, messages), None)
            if found is not None:
                return found
        raise RuntimeError(f"the engine took more than {seconds:.0f} s ({what})")


@contextmanager
def bare_engine(settings: EngineSettings, log_file: Path, log: Log) -> Iterator[BareEngine]:
    """Start the engine of `settings`, at batch 1, fully instrumented; it ends with the block.

    What it writes goes to `log_file`. Raises RuntimeError where it does not become warm.
    """
    with front_socket() as (address, front), log_file.open("ab") as written:
        settings = msgspec.structs.replace(
            settings, address=address, batch_sizes=[1], profile_every=0, instrumentation="full"
        )
        argument = msgspec.json.encode(settings).decode()
        command = owned([sys.executable, "-m", "service.engine.process", argument])
        with children_on(os.sched_getaffinity(0).union(settings.cpus or ())):
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=written, stderr=written, start_new_session=True
            )
        try:
            engine = BareEngine(front)
            engine.await_warm(log)
            yield engine
        finally:
            _end(process, front)


def _end(process: subprocess.Popen[bytes], front: FrontSocket) -> None:
    try:
        front.send(Stop())
    except ConnectionError:  # it has not connected, or has ended
        process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
