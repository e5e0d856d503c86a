"""Starts the engine process, watches it, and starts the next one when it ends; each has its own socket."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from time import monotonic

import msgspec

from service.front.child_process import (
    ChildOutput,
    ChildSocket,
    ProcessWatch,
    kill_group,
    module_command,
    spawn,
    watch,
)
from service.front.engine_client import EngineClient
from service.modes import MODES
from service.records import EngineSettings

log = logging.getLogger("launchbound.supervisor")

ENGINE_COMMAND = module_command("service.engine.process")
EXIT_BAD_SETTINGS, EXIT_DEVICE_LOST, EXIT_CACHE_DISCARDED = 2, 4, 5

EXPLAINED = {
    EXIT_DEVICE_LOST: (
        ": an error of CUDA or its libraries has left its device unusable, see its message above"
    ),
    EXIT_CACHE_DISCARDED: ": a mode failed on compiled code of an earlier start, which was removed",
}
"""What exit codes of the engine add to the reason."""

CRASHES = frozenset(-number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL))
"""How a library ends its process that was cut off, or made for another processor."""


class Supervisor:
    """Owns the engine process and its socket, a new one for each.

    `settings_for` builds the engine's settings for a socket address. `refused` is called with the reason
    where an engine refuses its settings (exit code 2) before any engine had a mode ready.
    """

    def __init__(
        self,
        client: EngineClient,
        settings_for: Callable[[str], EngineSettings],
        command: Sequence[str] = ENGINE_COMMAND,
        first_retry_seconds: float = 0.5,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        self._client = client
        self._settings_for = settings_for
        self._command = tuple(command)
        self._refused = refused
        self._cores = os.sched_getaffinity(0)
        self.socket: ChildSocket | None = None
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        self._discard_compiled = False
        self.failures = Failures(first_retry_seconds)
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def unhealthy_reason(self) -> str | None:
        """Why an operator or orchestrator must act: engines keep ending. None while all is well."""
        often = self.failures.unhealthy(self._client.warm_since)
        return f"{often}; last: {self._client.last_failure}" if often else None

    def start(self) -> None:
        self._task = asyncio.create_task(self._restart_forever(), name="engine-supervisor")

    async def stop(self) -> None:
        """End the engine: Stop, then SIGTERM, then SIGKILL, each with a timeout."""
        self._ending = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def kill(self) -> None:
        """End the engine at once, and start no other."""
        self._ending = True
        kill_group(self.pid)

    def _warm(self) -> bool:
        """Whether the present engine is, or the one that has just ended was."""
        engine = self._client.engine
        return engine is not None and engine.warm

    def _loaded_compiled(self) -> bool:
        """Whether the engine that has just ended had come to a mode that compiles."""
        effects = {
            name: MODES[name].effect(self._client.device)
            for name, status in self._client.modes.items()
            if status.state != "cold"
        }
        return any(effect.compiles for effect in effects.values())

    async def _restart_forever(self) -> None:
        """Run one engine after another until `stop`, `kill` or a refusal."""
        while not self._ending:
            try:
                reason, exit_code = await self._run_engine()
            except Exception as error:
                log.exception("running the engine failed")
                reason, exit_code = f"the engine could not be run: {type(error).__name__}: {error}", None
            if exit_code == EXIT_BAD_SETTINGS and not self._client.served and self._refused is not None:
                self._client.lost(reason, retry_after_seconds=60)
                self._refused(reason)
                return
            await asyncio.sleep(self._failed(reason))

    def _failed(self, reason: str) -> float:
        """Count the failure of an engine and tell the client; returns the seconds until the next start."""
        wait = self.failures.add(self._warm())
        message = f"{reason}; a new one starts in {wait:.1f} s"
        log.error(message)
        self._client.lost(message, retry_after_seconds=round(wait) + 5)
        return wait

    async def _run_engine(self) -> tuple[str, int | None]:
        """Run one engine process, from bind to its end; returns why it ended, and the exit code."""
        self.starts += 1
        try:
            with (
                closing(ChildSocket(f"engine-{self.starts}", self._client.received)) as self.socket,
                closing(ChildOutput("engine")) as output,
            ):
                return await self._run(self.socket, output)
        except OSError as error:
            return f"the engine could not be started: {error}", None

    async def _run(self, socket: ChildSocket, output: ChildOutput) -> tuple[str, int | None]:
        settings = self._settings_for(socket.address)
        settings = msgspec.structs.replace(settings, discard_compiled=self._discard_compiled)
        self._process = process = await spawn(self._command, settings, self._cores, output)
        engine_watch = ProcessWatch(process.pid)
        stuck = self._client.attach(socket.send, engine_watch)
        try:
            reason = await watch("the engine", process, socket, engine_watch, stuck)
        finally:
            self._process = None
            self._client.detach()
        code = process.returncode
        self._discard_compiled = code in CRASHES and not self._warm() and self._loaded_compiled()
        return reason + EXPLAINED.get(code or 0, ""), code


WINDOW_SECONDS = 900.0
"""Failures this long ago no longer count, except those before anything was warm."""

STAYED_SECONDS = 180.0
"""An engine that has been warm for so long serves, however those before it ended."""

SLOWEST_RETRY_SECONDS = 30.0
FAILURES_UNTIL_UNHEALTHY = 5


class Failures:
    """The failures of one front's engines.

    Two loops are told from single failures: engines that never become warm, however long each takes, and
    engines that do, and end several times within the window.
    """

    def __init__(self, first_retry_seconds: float, now: Callable[[], float] = monotonic) -> None:
        self.first_retry_seconds = first_retry_seconds
        self.now = now
        self._instants: deque[float] = deque(maxlen=1000)
        self._never_warm = 0

    def add(self, warm: bool) -> float:
        """An engine ended, which had been `warm` or not; returns the seconds until the next one's start.

        0 after the first in a while that had been warm, as its clients wait. Else twice as long after each,
        up to a limit.
        """
        self._instants.append(self.now())
        self._never_warm = 0 if warm else self._never_warm + 1
        failures = max(self._recent() - warm, self._never_warm)
        if failures == 0:
            return 0.0
        doubled = self.first_retry_seconds * 2.0 ** min(failures - 1, 16)
        return min(SLOWEST_RETRY_SECONDS, doubled)

    def unhealthy(self, warm_since: float | None) -> str | None:
        """Whether engines keep ending, as a sentence; None where they do not, or the present one has stayed.

        `warm_since`: when that became warm, by the same clock as `now`; None where it is not.
        """
        if warm_since is not None and self.now() - warm_since >= STAYED_SECONDS:
            return None
        recent = self._recent()
        if recent >= FAILURES_UNTIL_UNHEALTHY:
            return f"the engine ended {recent} times within {WINDOW_SECONDS / 60:.0f} minutes"
        if warm_since is None and self._never_warm >= FAILURES_UNTIL_UNHEALTHY:
            return f"the engine ended {self._never_warm} times in a row before it was warm"
        return None

    def _recent(self) -> int:
        begin = self.now() - WINDOW_SECONDS
        while self._instants and self._instants[0] < begin:
            self._instants.popleft()
        return len(self._instants)
