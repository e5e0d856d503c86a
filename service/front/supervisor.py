"""Starts the engine process, watches it, and starts the next one when it ends: one socket per life."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

import zmq

from service.front.child_process import FOLDER_PREFIX, module_command, spawn, watch
from service.front.child_socket import ChildSocket
from service.front.engine_client import EngineClient
from service.protocol.messages import EngineSettings

log = logging.getLogger("launchbound.supervisor")

ENGINE_COMMAND = module_command("service.engine.process")
EXIT_BAD_SETTINGS = 2
QUICK_DEATH_SECONDS = 60.0
"""A life shorter than this counts as a failed start, and the next one waits longer."""

SLOWEST_RETRY_SECONDS = 30.0
DEATHS_UNTIL_UNWELL = 5
IPC_PATH_LIMIT = 107


class Supervisor:
    """Owns the engine process and the private folder of its sockets.

    `describe` builds the engine's settings for a socket address; `refused` is called once if the very first
    engine says, by exit code 2 before it was up, that its settings cannot work.
    """

    def __init__(
        self,
        client: EngineClient,
        describe: Callable[[str], EngineSettings],
        command: Sequence[str] = ENGINE_COMMAND,
        first_retry_seconds: float = 0.5,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        self._client, self._describe, self._command = client, describe, tuple(command)
        self._first_retry_seconds, self._refused = first_retry_seconds, refused
        self._cores = os.sched_getaffinity(0)
        self.folder: Path | None = None
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self.lives = 0
        self.quick_deaths = 0

    @property
    def pid(self) -> int | None:
        """Process id of the running engine."""
        return self._process.pid if self._process is not None else None

    @property
    def unwell(self) -> str | None:
        """Why the service should be looked at by a person or an orchestrator: it cannot start an engine."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            return f"the engine's supervisor ended: {self._task.exception()!r}"
        if self.quick_deaths >= DEATHS_UNTIL_UNWELL:
            return f"the engine ended {self.quick_deaths} times in a row; last: {self._client.down_reason}"
        return None

    def retry_seconds(self) -> float:
        """How long to wait before the next life: twice as long after each quick death, to a limit."""
        doublings = min(max(0, self.quick_deaths - 1), 16)
        return min(SLOWEST_RETRY_SECONDS, self._first_retry_seconds * 2.0**doublings)

    def start(self) -> None:
        """Begin the first life in the background. Raises OSError where no socket fits into TMPDIR."""
        folder = tempfile.gettempdir()
        if len(os.fsencode(folder)) + len(f"/{FOLDER_PREFIX}12345678/engine-123456.sock") > IPC_PATH_LIMIT:
            raise OSError(f"the path of {folder} is too long for a socket in it; set TMPDIR to a shorter one")
        self._task = asyncio.create_task(self._live_on(), name="engine-supervisor")

    async def stop(self) -> None:
        """End the engine: ask, then SIGTERM, then SIGKILL, each with its time; its folder goes with it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _live_on(self) -> None:
        with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as folder, zmq.Context() as context:
            self.folder = Path(folder)
            await self._live_again_and_again(self.folder, context)

    async def _live_again_and_again(self, folder: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        while True:
            began = monotonic()
            reason, exit_code = await self._live(folder / f"engine-{self.lives + 1}.sock", context)
            never_up = self.lives == 1 and self._client.engine is None
            if exit_code == EXIT_BAD_SETTINGS and never_up and self._refused is not None:
                self._refused(reason)
                self._client.lost(reason, retry_after_seconds=60)
                return
            self.quick_deaths = self.quick_deaths + 1 if monotonic() - began < QUICK_DEATH_SECONDS else 0
            wait = self.retry_seconds()
            told = f"{reason}; a new one starts in {wait:.1f} s"
            log.error(told)
            self._client.lost(told, retry_after_seconds=round(wait) + 5)
            await asyncio.sleep(wait)

    async def _live(self, path: Path, context: zmq.Context[zmq.Socket[bytes]]) -> tuple[str, int | None]:
        """One engine life, from bind to the end of the process; returns why it ended, and the exit code."""
        self.lives += 1
        socket = ChildSocket(context, f"ipc://{path}", self._client.received)
        try:
            settings = self._describe(f"ipc://{path}")
            self._process = process = await spawn(self._command, settings, self._cores)
            self._client.attach(socket.send)
            reason = await watch("the engine", process, socket, self._client.stuck, "does not answer")
            return reason, process.returncode
        except OSError as error:
            return f"the engine could not be started: {error}", None
        finally:
            self._process = None
            self._client.detach()
            socket.close()
            path.unlink(missing_ok=True)
