"""Starts the engine process, watches it, and starts the next one when it ends; each has its own socket."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from service.front.child_process import FOLDER_PREFIX, module_command, spawn, watch
from service.front.child_socket import ChildSocket
from service.front.engine_client import EngineClient
from service.protocol.messages import EngineSettings

log = logging.getLogger("launchbound.supervisor")

ENGINE_COMMAND = module_command("service.engine.process")
EXIT_BAD_SETTINGS, EXIT_DEVICE_LOST = 2, 4
HEALTHY_SECONDS = 60.0
"""An engine that ended sooner counts as a failed start, and the next one is started later."""

SLOWEST_RETRY_SECONDS = 30.0
FAILED_STARTS_UNTIL_UNHEALTHY = 5
IPC_PATH_LIMIT = 107


class Supervisor:
    """Owns the engine process and the private folder of its sockets.

    `settings_for` builds the engine's settings for a socket address; `refused` is called once if the very
    first engine refuses its settings: exit code 2 before it has connected.
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
        self._first_retry_seconds = first_retry_seconds
        self._refused = refused
        self._cores = os.sched_getaffinity(0)
        self.folder: Path | None = None
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self.starts = 0
        self.failed_starts = 0

    @property
    def pid(self) -> int | None:
        """Process id of the running engine."""
        return self._process.pid if self._process is not None else None

    @property
    def unhealthy_reason(self) -> str | None:
        """Why an operator or orchestrator must act: the engine cannot be started. None while all is well."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            return f"the engine's supervisor ended: {self._task.exception()!r}"
        if self.failed_starts >= FAILED_STARTS_UNTIL_UNHEALTHY:
            return f"the engine ended {self.failed_starts} times in a row; last: {self._client.down_reason}"
        return None

    def retry_seconds(self) -> float:
        """How long to wait before the next start: twice as long after each failed one, up to a limit.

        Not at all after an engine that had run: nothing speaks for another failure, and its clients wait.
        """
        if self.failed_starts == 0:
            return 0.0
        doublings = min(self.failed_starts - 1, 16)
        return min(SLOWEST_RETRY_SECONDS, self._first_retry_seconds * 2.0**doublings)

    def start(self) -> None:
        """Start the first engine in the background. Raises OSError where the path of TMPDIR is too long."""
        folder = tempfile.gettempdir()
        if len(os.fsencode(folder)) + len(f"/{FOLDER_PREFIX}12345678/engine-123456.sock") > IPC_PATH_LIMIT:
            raise OSError(f"the path of {folder} is too long for a socket in it; set TMPDIR to a shorter one")
        self._task = asyncio.create_task(self._supervise(), name="engine-supervisor")

    async def stop(self) -> None:
        """End the engine: Stop, then SIGTERM, then SIGKILL, each with a timeout; remove its folder."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _supervise(self) -> None:
        with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as folder:
            self.folder = Path(folder)
            await self._restart_forever(self.folder)

    async def _restart_forever(self, folder: Path) -> None:
        while True:
            began = monotonic()
            reason, exit_code = await self._run_engine(folder / f"engine-{self.starts + 1}.sock")
            never_up = self.starts == 1 and self._client.engine is None
            if exit_code == EXIT_BAD_SETTINGS and never_up and self._refused is not None:
                self._refused(reason)
                self._client.lost(reason, retry_after_seconds=60)
                return
            self.failed_starts = self.failed_starts + 1 if monotonic() - began < HEALTHY_SECONDS else 0
            wait = self.retry_seconds()
            message = f"{reason}; a new one starts in {wait:.1f} s"
            log.error(message)
            self._client.lost(message, retry_after_seconds=round(wait) + 5)
            await asyncio.sleep(wait)

    async def _run_engine(self, path: Path) -> tuple[str, int | None]:
        """Run one engine process, from bind to its end; returns why it ended, and the exit code."""
        self.starts += 1
        socket = ChildSocket(str(path), self._client.received)
        try:
            settings = self._settings_for(str(path))
            self._process = process = await spawn(self._command, settings, self._cores)
            self._client.attach(socket.send)
            reason = await watch("the engine", process, socket, self._client.stuck, "does not answer")
            if process.returncode == EXIT_DEVICE_LOST:
                reason += (
                    ": an error of CUDA or its libraries has left its device unusable, see its message above"
                )
            return reason, process.returncode
        except OSError as error:
            return f"the engine could not be started: {error}", None
        finally:
            self._process = None
            self._client.detach()
            socket.close()
            path.unlink(missing_ok=True)
