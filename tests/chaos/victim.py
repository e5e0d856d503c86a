"""A service of its own to be broken, what a fault of it is, and what came of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import psutil

from service.parent_death import owned
from tests.support.processes import gone
from tests.support.serving import FRESH, until

SERVING_LINE = "launchbound: serving on "
BODY = {"prompts": ["def mean(values):"], "max_new_tokens": 8}
PATIENCE_SECONDS = 120.0
STAGES = ("importing torch", "loading the model", "warming up", "serving")
"""What an engine announces, in this order."""

Wrap = Callable[[list[str]], list[str]]


@dataclass(frozen=True, slots=True)
class Setup:
    """How a service is started: its modes, settings by their variables, `wrap` around its command line."""

    modes: str = "eager,inference_mode"
    batch_sizes: str = "1"
    environment: Mapping[str, str] = field(default_factory=dict)
    wrap: Wrap = list


PLAIN = Setup()


class Victim:
    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.http = httpx.Client(base_url=url, headers=FRESH, timeout=PATIENCE_SECONDS, trust_env=False)

    def live(self) -> dict[str, Any]:
        """What /health/live says, whatever its status; empty where nobody answers."""
        try:
            body: dict[str, Any] = self.http.get("/health/live").json()
        except httpx.TransportError:
            return {}
        return body

    def at(self, stage: str) -> int:
        """Wait until the engine announces `stage`; returns its pid.

        One that is already past it is killed, so that the next one comes by.
        """
        until(lambda: self.stage() is not None, "the engine's first word", PATIENCE_SECONDS)
        if STAGES.index(self.stage() or stage) > STAGES.index(stage):
            os.kill(self.engine(), signal.SIGKILL)
        until(lambda: self.stage() == stage, f"the engine to be {stage}", PATIENCE_SECONDS)
        return self.engine()

    def stage(self) -> str | None:
        doing = str(self.live().get("engine_doing"))
        return next((stage for stage in STAGES if doing.startswith(stage)), None)

    def engine(self) -> int:
        return until(lambda: self._child("service.engine.process"), "the engine", PATIENCE_SECONDS)

    def anatomy(self) -> int:
        return until(lambda: self._child("service.anatomy.process"), "the anatomy process", PATIENCE_SECONDS)

    def _child(self, module: str) -> int | None:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                # Before it becomes the module, it is the program that owns it, with the same arguments.
                if module in child.cmdline() and "parent_death.py" not in " ".join(child.cmdline()):
                    return child.pid
        return None

    def ready(self) -> bool:
        with suppress(httpx.TransportError):
            answer = self.http.get("/health/ready")
            return answer.status_code == 200 and not answer.json()["degraded"]
        return False

    def await_ready(self, patience: float = PATIENCE_SECONDS) -> None:
        until(self.ready, "all modes ready", patience)

    def await_warm(self) -> None:
        """Until all modes serve and the engine has sampled their steps: from then on it only serves."""
        self.await_ready()
        until(lambda: self.http.get("/v1/modes").json()["engine"]["warm"], "a warm engine", PATIENCE_SECONDS)

    def generate(self, mode: str = "eager", **body: object) -> httpx.Response:
        return self.http.post(f"/v1/modes/{mode}/generate", json={**BODY, **body})

    def series(self) -> dict[str, float]:
        lines = self.http.get("/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name.removeprefix("launchbound_"): float(value) for name, value in pairs}

    def at_rest(self) -> None:
        until(lambda: not self.in_progress(), "the end of all requests", PATIENCE_SECONDS)

    def in_progress(self) -> float:
        return sum(n for name, n in self.series().items() if name.startswith("requests_in_progress{"))


@contextmanager
def victim(folder: Path, setup: Setup = PLAIN) -> Iterator[Victim]:
    """A service with its cache in `folder`; it and its descendants are gone at the end."""
    with (folder / "service.log").open("ab") as log:
        process = start(folder, log, setup)
        started: list[psutil.Process] = []
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(SERVING_LINE), f"the service did not start: {line!r}"
            running = Victim(process, line.removeprefix(SERVING_LINE).strip())
            with running.http:
                try:
                    yield running
                finally:
                    with suppress(psutil.NoSuchProcess):
                        started = psutil.Process(process.pid).children(recursive=True)
        finally:
            end(process, [child.pid for child in started])


def start(folder: Path, log: Any = subprocess.PIPE, setup: Setup = PLAIN) -> subprocess.Popen[str]:
    """Start `launchbound serve` on a free port; it ends with this process."""
    options = ["--port=0", f"--modes={setup.modes}", f"--batch-sizes={setup.batch_sizes}", "--device=cpu"]
    command = owned([sys.executable, "-m", "launchbound", "serve", *options], signal.SIGKILL)
    own = {"LAUNCHBOUND_CACHE_FOLDER": str(folder / "cache"), **setup.environment}
    return subprocess.Popen(
        setup.wrap(command),
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, **own},
        start_new_session=True,
    )


def end(process: subprocess.Popen[str], children: list[int]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
    for pid in children:
        if not gone(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


REPLACED_SECONDS, NOTICED_SECONDS, ENDED_SECONDS, ANSWERED_SECONDS = 30.0, 15.0, 10.0, 2.0
"""Ready again after an engine's death; a hang noticed; a service ended; its running requests ended."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What a fault led to: in words, with its seconds, and whether it is what must happen."""

    words: str
    seconds: float
    as_must: bool


Experiment = Callable[[Path], Happened]
"""Gets an empty folder, and says what happened. Raises NotPossible where this machine lacks what it needs."""


class NotPossible(Exception):
    """What a fault needs and this machine lacks; the message says what."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`must` is what has to happen."""

    name: str
    must: str
    run: Experiment


def seconds_until(condition: Callable[[], object], what: str) -> float:
    began = monotonic()
    until(condition, what, PATIENCE_SECONDS)
    return monotonic() - began
