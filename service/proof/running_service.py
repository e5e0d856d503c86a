"""What checks send requests to: a service over HTTP, and an engine whose front is this process."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from time import monotonic, perf_counter, perf_counter_ns
from typing import Any
from urllib.parse import urlsplit

import msgspec

from loadtests.run.machine import off_cores
from loadtests.run.target import Target, Unreachable, await_modes
from service.engine.inbox import local_job
from service.frames import FrameStream, accept, listen
from service.front.launch import launched
from service.front.settings import Settings
from service.machine import children_on
from service.measure.rounds import Log
from service.parent_death import owned
from service.records import EngineStatus, Outcome, Stop, ToEngine, ToFront

PROMPT = "def mean(values):\n    total = 0\n    for value in values:\n"
NEW_TOKENS = 32
"""The request that all checks send, over HTTP and in process alike."""


# A service

WITHOUT_PROGRESS_SECONDS = 600.0


class Connection:
    """One kept-alive connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._http = HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def get(self, path: str) -> tuple[int, bytes]:
        self._http.request("GET", path)
        response = self._http.getresponse()
        return response.status, response.read()

    def generate(self, mode: str, new_tokens: int = NEW_TOKENS, sample: bool = False) -> dict[str, Any]:
        """The timings of one request, with the client's own `latency_seconds`. Raises RuntimeError."""
        answer, latency = self.answer(mode, new_tokens, sample)
        timings: dict[str, Any] = json.loads(answer)["timings"]
        return {**timings, "latency_seconds": latency}

    def answer(self, mode: str, new_tokens: int = NEW_TOKENS, sample: bool = False) -> tuple[bytes, float]:
        """The body of one answer, and the client's latency in seconds. Raises RuntimeError."""
        asked = {"prompts": [PROMPT], "max_new_tokens": new_tokens, "ignore_eos": True}
        body = json.dumps(asked | {"sample": True} if sample else asked)
        began = perf_counter()
        self._http.request("POST", f"/v1/modes/{mode}/generate", body, {"Content-Type": "application/json"})
        response = self._http.getresponse()
        text = response.read()
        latency = perf_counter() - began
        if response.status != 200:
            raise RuntimeError(f"{mode} returned {response.status}: {text[:200].decode(errors='replace')}")
        return text, latency

    def close(self) -> None:
        self._http.close()


@dataclass(frozen=True, slots=True)
class RunningService:
    """A warm service of `settings`; `cpus` are its engine's cores, `folder` keeps its log."""

    url: str
    settings: Settings
    cpus: list[int]
    folder: Path

    @property
    def modes(self) -> list[str]:
        """As the settings name them, the one with the shortest steps last."""
        return self.settings.modes

    def connection(self) -> closing[Connection]:
        return closing(Connection(self.url))


def service_flags(settings: Settings) -> list[str]:
    """The command line's flags for `settings`, as far as the checks depend on them."""
    given = {
        "model": settings.model,
        "device": settings.device,
        "dtype": settings.dtype,
        "modes": ",".join(settings.modes),
        "batch-sizes": ",".join(map(str, settings.batch_sizes)),
    }
    return [f"--{name}={value}" for name, value in given.items() if value]


@contextmanager
def running_service(settings: Settings, folder: Path, log: Log) -> Iterator[RunningService]:
    """Start a service, wait until it is warm, keep off its engine's cores, end it with the block.

    Raises TargetError where it does not become ready, and LaunchError where it does not start or has ended.
    """
    environment = {"LAUNCHBOUND_CACHE_FOLDER": str(settings.cache_folder), "LAUNCHBOUND_API_KEY": None}
    log_file, lost = folder / "service.log", (ConnectionError, Unreachable)
    with launched(service_flags(settings), log_file, environment, lost=lost) as url:
        ready = await_modes(Target(url), settings.modes, log, WITHOUT_PROGRESS_SECONDS, settled=True)
        cpus = ready["engine"]["cpus"]
        with off_cores(cpus):
            yield RunningService(url, settings, cpus, folder)


# An engine without a service

WARM_SECONDS = 600.0
JOB_SECONDS = 60.0
"""Longest wait for an engine to be warm, and for one job."""

STOP_SECONDS = 10.0
POLL_SECONDS = 0.1

_decode = msgspec.msgpack.Decoder(ToFront).decode
_encode = msgspec.msgpack.Encoder().encode


class BareEngine:
    """The front's end of the socket at `address`, to which an engine connects, and does one job at a time."""

    def __init__(self) -> None:
        self.address = f"launchbound-{secrets.token_hex(16)}-selftest"
        self._listener = listen(self.address)
        self._listener.settimeout(POLL_SECONDS)
        self._stream: FrameStream | None = None
        self._numbers = count()

    def overhead_seconds(self, mode: str) -> float:
        """Run one job in `mode`: its time between arrival and end beside steps and tokenising.

        Raises RuntimeError where it was not done.
        """
        job = local_job(f"overhead-{next(self._numbers)}", mode, [PROMPT], NEW_TOKENS, ignore_eos=True)
        try:
            self.send(msgspec.structs.replace(job, sent_ns=perf_counter_ns()))
            outcome = self._await(lambda message: isinstance(message, Outcome), JOB_SECONDS)
        except (ConnectionError, EOFError) as error:
            raise RuntimeError(f"the engine ended (a job in {mode})") from error
        assert isinstance(outcome, Outcome)
        timings = outcome.timings
        if timings is None:
            raise RuntimeError(f"job {outcome.id} did not run: {outcome.problem}")
        walls = (timings.prefill.wall_seconds or 0.0) + (timings.decode.wall_seconds or 0.0)
        return (timings.done_ns - timings.taken_ns) / 1e9 - walls - timings.tokenise_seconds

    def await_warm(self, log: Log) -> None:
        """Return once it is. Raises EOFError where it ends first, RuntimeError after WARM_SECONDS."""

        def is_warm(message: ToFront) -> bool:
            log("an engine without a service, until it is warm")
            return isinstance(message, EngineStatus) and message.warm

        self._await(is_warm, WARM_SECONDS)

    def _await(self, wanted: Callable[[ToFront], bool], seconds: float) -> ToFront:
        until = monotonic() + seconds
        while monotonic() < until:
            found = next(filter(wanted, self.receive()), None)
            if found is not None:
                return found
        raise RuntimeError(f"the engine did not answer within {seconds:.0f} s")

    def receive(self) -> list[ToFront]:
        """The messages that arrive next; none where none has arrived within POLL_SECONDS.

        Raises EOFError once the engine has closed its end and all are received.
        """
        with suppress(TimeoutError):
            self._stream = self._stream or accept(self._listener)
        if self._stream is None or not self._stream.wait(POLL_SECONDS * 1e3):
            return []
        return [_decode(frame) for frame in self._stream.receive()]

    def send(self, message: ToEngine) -> None:
        """Never waits. Raises ConnectionError where no engine is there to receive."""
        if self._stream is None:
            raise ConnectionError("no engine has connected")
        self._stream.send(_encode(message))

    def close(self) -> None:
        self._listener.close()
        if self._stream is not None:
            self._stream.close()


@contextmanager
def bare_engine(service: RunningService, log: Log) -> Iterator[BareEngine]:
    """Start an engine of the service's settings on its cores, at batch 1, fully instrumented, until the
    block ends. Its output goes to `engine.log`. Raises RuntimeError where it does not become warm.
    """
    with closing(BareEngine()) as engine, (service.folder / "engine.log").open("ab") as written:
        settings = msgspec.structs.replace(
            service.settings.engine_settings(engine.address),
            cpus=service.cpus,
            batch_sizes=[1],
            profile_every=0,
            instrumentation="full",
        )
        argument = msgspec.json.encode(settings).decode()
        command = owned([sys.executable, "-m", "service.engine.process", argument])
        with children_on(os.sched_getaffinity(0).union(service.cpus)):
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=written, stderr=written, start_new_session=True
            )
        try:
            engine.await_warm(log)
            yield engine
        finally:
            try:
                engine.send(Stop())
            except ConnectionError:  # it has not connected, or has ended
                process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
