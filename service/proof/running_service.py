"""What checks send requests to: a service over HTTP, a bare FastAPI route, an engine without a service.

Started as `python -m service.proof.running_service`, this is the bare route: what answering costs without an
engine, a queue or timings. It answers every generation with the JSON that it is given.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from time import monotonic, perf_counter, perf_counter_ns
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from loadtests.run.machine import off_cores
from loadtests.run.target import Target, Unreachable, await_modes
from service.engine.inbox import local_job
from service.frames import FrameStream, accept, listen
from service.front.launch import SERVING, end, launched
from service.front.settings import Settings
from service.machine import children_on
from service.measure.rounds import Log
from service.parent_death import owned
from service.records import EngineStatus, Outcome, ToFront

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
    """A warm service of `settings`, whose last mode has the shortest steps; `folder` keeps its log.

    `cpus` are its engine's cores. `no_samples`: why its requests are not sampled; None where they are.
    """

    url: str
    settings: Settings
    cpus: list[int]
    folder: Path
    no_samples: str | None

    def connection(self) -> closing[Connection]:
        return closing(Connection(self.url))


@contextmanager
def running_service(settings: Settings, folder: Path, log: Log) -> Iterator[RunningService]:
    """Start a service, wait until it is warm, keep off its engine's cores, end it with the block.

    Raises TargetError where it does not become ready, and LaunchError where it does not start or has ended.
    """
    environment = {"LAUNCHBOUND_CACHE_FOLDER": str(settings.cache_folder), "LAUNCHBOUND_API_KEY": None}
    # As far as the checks depend on them.
    given = {
        "model": settings.model,
        "device": settings.device,
        "dtype": settings.dtype,
        "modes": ",".join(settings.modes),
        "batch-sizes": ",".join(map(str, settings.batch_sizes)),
    }
    flags = [f"--{name}={value}" for name, value in given.items() if value]
    with launched(flags, folder / "service.log", environment, lost=(ConnectionError, Unreachable)) as url:
        ready = await_modes(Target(url), settings.modes, log, WITHOUT_PROGRESS_SECONDS, settled=True)
        engine = ready["engine"]
        with off_cores(engine["cpus"]):
            yield RunningService(url, settings, engine["cpus"], folder, engine["no_samples"])


# A bare route, in a process of its own


ANSWER_VARIABLE = "BARE_ROUTE_ANSWER"


class Generation(BaseModel):
    prompts: list[str]
    max_new_tokens: int
    ignore_eos: bool


def bare_route(answer: bytes, folder: Path) -> AbstractContextManager[str]:
    """Run it on this process's cores until the block ends; gives its URL. `answer` is JSON.

    Its output goes to `bare.log` in `folder`. Raises LaunchError where it ends before it listens.
    """
    environment = {ANSWER_VARIABLE: answer.decode()}
    return launched((), folder / "bare.log", environment, module=["service.proof.running_service"])


def main() -> None:
    """Serve the route as FastAPI's own tutorial would write it: a validated body in, a dictionary out."""
    answer: dict[str, Any] = json.loads(os.environ[ANSWER_VARIABLE])
    app = FastAPI()

    @app.post("/v1/modes/{mode}/generate")
    async def generate(mode: str, body: Generation) -> dict[str, Any]:
        return answer

    listener = socket.create_server(("127.0.0.1", 0))
    print(f"{SERVING}http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


# An engine without a service

CONNECT_SECONDS, WARM_SECONDS, JOB_SECONDS = 60.0, 600.0, 60.0
"""Longest wait for an engine to connect, to be warm, and to do one job."""

POLL_SECONDS = 0.1

_decode = msgspec.msgpack.Decoder(ToFront).decode


class BareEngine:
    """The front's end of the `stream` to an engine, which does one job at a time."""

    def __init__(self, stream: FrameStream) -> None:
        self._stream = stream
        self._numbers = count()

    def overhead_seconds(self, mode: str) -> float:
        """Run one job in `mode`: its time between arrival and end beside steps and tokenising.

        Raises RuntimeError where it was not done.
        """
        job = local_job(f"overhead-{next(self._numbers)}", mode, [PROMPT], NEW_TOKENS, ignore_eos=True)
        job = msgspec.structs.replace(job, sent_ns=perf_counter_ns())
        try:
            self._stream.send(msgspec.msgpack.encode(job))
            outcome = self.first(lambda message: isinstance(message, Outcome), JOB_SECONDS)
        except (ConnectionError, EOFError) as error:
            raise RuntimeError(f"the engine ended (a job in {mode})") from error
        assert isinstance(outcome, Outcome)
        timings = outcome.timings
        if timings is None:
            raise RuntimeError(f"job {outcome.id} did not run: {outcome.problem}")
        walls = (timings.prefill.wall_seconds or 0.0) + (timings.decode.wall_seconds or 0.0)
        return (timings.done_ns - timings.taken_ns) / 1e9 - walls - timings.tokenise_seconds

    def first(self, wanted: Callable[[ToFront], bool], seconds: float) -> ToFront:
        """The first message that is `wanted`. Raises EOFError where the engine ends, RuntimeError where it
        does not come within `seconds`.
        """
        until = monotonic() + seconds
        while monotonic() < until:
            arrived = self._stream.receive() if self._stream.wait(POLL_SECONDS * 1e3) else []
            found: ToFront | None = next(filter(wanted, map(_decode, arrived)), None)
            if found is not None:
                return found
        raise RuntimeError(f"the engine did not answer within {seconds:.0f} s")


def _accepted(listener: socket.socket) -> FrameStream:
    listener.settimeout(CONNECT_SECONDS)
    with suppress(TimeoutError):
        if stream := accept(listener):
            return stream
    raise RuntimeError(f"the engine did not connect within {CONNECT_SECONDS:.0f} s")


@contextmanager
def bare_engine(service: RunningService, log: Log) -> Iterator[BareEngine]:
    """Start an engine of the service's settings on its cores, at batch 1, fully instrumented, until the
    block ends. Its output goes to `engine.log`. Raises RuntimeError or EOFError where it is not warm in time.
    """

    def is_warm(message: ToFront) -> bool:
        log("an engine without a service, until it is warm")
        return isinstance(message, EngineStatus) and message.warm

    settings = msgspec.structs.replace(
        service.settings.engine_settings(f"launchbound-{secrets.token_hex(16)}-selftest"),
        cpus=service.cpus,
        batch_sizes=[1],
        profile_every=0,
        instrumentation="full",
    )
    argument = msgspec.json.encode(settings).decode()
    command = owned([sys.executable, "-m", "service.engine.process", argument])
    with listen(settings.address) as listener, (service.folder / "engine.log").open("ab") as written:
        with children_on(os.sched_getaffinity(0).union(service.cpus)):
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=written, stderr=written, start_new_session=True
            )
        try:
            with closing(_accepted(listener)) as stream:
                engine = BareEngine(stream)
                engine.first(is_warm, WARM_SECONDS)
                yield engine
        finally:
            end(process)


if __name__ == "__main__":
    main()
