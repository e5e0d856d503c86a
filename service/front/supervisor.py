"""Starts the engine process, watches it, and starts the next one when it ends; each has its own socket."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from time import monotonic

import msgspec

from service.front.child_process import ChildSocket, ProcessWatch, kill_group, module_command, run_child
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

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.5, 30.0
"""From the end of an engine to the next start: twice as long after each failure, up to a limit."""

STAYED_SECONDS = 180.0
"""An engine that has been warm for so long serves, however those before it ended."""

FAILURES_UNTIL_UNHEALTHY = 5


class Supervisor:
    """Owns the engine process. `failures`: engines that ended in a row, none of which had stayed.

    `refused` is called with the reason where the first engine refuses its settings.
    """

    def __init__(
        self,
        client: EngineClient,
        settings_for: Callable[[str], EngineSettings],
        command: Sequence[str] = ENGINE_COMMAND,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        self._client = client
        self._settings_for = settings_for
        self._command = tuple(command)
        self._refused = refused
        self._cores = os.sched_getaffinity(0)
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        self._discard_compiled = False
        self.first_retry_seconds = FIRST_RETRY_SECONDS
        self.failures = 0
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def unhealthy_reason(self) -> str | None:
        """Why an operator or orchestrator must act: engines keep ending. None while all is well."""
        if self.failures < FAILURES_UNTIL_UNHEALTHY or self._has_stayed():
            return None
        return f"the engine ended {self.failures} times in a row; last: {self._client.last_failure}"

    def start(self) -> None:
        self._task = asyncio.create_task(self._restart_forever(), name="engine-supervisor")

    async def stop(self) -> None:
        self._ending = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def kill(self) -> None:
        self._ending = True
        kill_group(self.pid)

    def _has_stayed(self) -> bool:
        since = self._client.warm_since
        return since is not None and monotonic() - since >= STAYED_SECONDS

    async def _restart_forever(self) -> None:
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
        """Count a failure and report it to the client; returns the seconds until the next start."""
        self.failures = 1 if self._has_stayed() else self.failures + 1
        wait = min(LAST_RETRY_SECONDS, self.first_retry_seconds * 2.0 ** min(self.failures - 1, 16))
        message = f"{reason}; a new one starts in {wait:.1f} s"
        log.error(message)
        self._client.lost(message, retry_after_seconds=round(wait) + 5)
        return wait

    async def _run_engine(self) -> tuple[str, int | None]:
        self.starts += 1

        def settings_for(address: str) -> EngineSettings:
            discard = self._discard_compiled
            return msgspec.structs.replace(self._settings_for(address), discard_compiled=discard)

        received = self._client.received
        try:
            reason, code = await run_child(
                "engine", self._command, settings_for, self._cores, received, self._started
            )
        finally:
            self._process = None
            self._client.detach()
        self._discard_compiled = code in CRASHES and self._was_loading_compiled()
        return reason + EXPLAINED.get(code or 0, ""), code

    def _started(self, process: Process, socket: ChildSocket, process_watch: ProcessWatch) -> None:
        self._process = process
        self._client.attach(socket.send, process_watch)

    def _was_loading_compiled(self) -> bool:
        """Whether the engine that has just ended had come to a mode that compiles, and was not warm yet."""
        if self._client.engine is not None and self._client.engine.warm:
            return False
        begun = [name for name, status in self._client.modes.items() if status.state != "cold"]
        return any(MODES[name].effect(self._client.device).compiles for name in begun)
