"""The anatomy process as the front has it: begun when needed, suspended, and ended with all its children."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import zmq

from service.front.child_process import FOLDER_PREFIX, module_command, spawn, watch
from service.front.child_socket import ChildSocket
from service.front.errors import StudyInterrupted, from_problem
from service.protocol.messages import EngineSettings
from service.protocol.studies import Finding, FromAnatomy, Ready, Study, StudyProgress

log = logging.getLogger("launchbound.anatomy")

ANATOMY_COMMAND = module_command("service.anatomy.process")
NAME = "the anatomy process"


class AnatomyProcess:
    """At most one life at a time. `doing` is what it says of itself, while it lives."""

    def __init__(
        self, describe: Callable[[str], EngineSettings], command: Sequence[str] = ANATOMY_COMMAND
    ) -> None:
        self._describe, self._command = describe, tuple(command)
        self._cores = os.sched_getaffinity(0)
        self._life: asyncio.Task[str] | None = None
        self._socket: ChildSocket | None = None
        self._leaving = False
        self._studies = 0
        self.pid: int | None = None
        self.doing: str | None = None
        self._decode = msgspec.msgpack.Decoder(FromAnatomy).decode

    async def start(self) -> None:
        """Begin a life unless there is one; returns once its model is loaded.

        Raises StudyInterrupted where the process ends before that.
        """
        if self._life is not None and not self._life.done():
            if not self._leaving:
                return
            await asyncio.wait({self._life})
        self._leaving = False
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unwanted = asyncio.Event()
        self.doing = "starting"
        self._life = asyncio.create_task(self._live(), name="anatomy-life")
        await self._until(self._ready)

    async def run(self, name: str, arguments: bytes) -> bytes:
        """The finding of study `name` as JSON, from the process that `start` began.

        Raises StudyInterrupted where it ends before that, or what the study was refused with.
        """
        self._studies += 1
        self._end: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._socket is not None:
            study = Study(id=self._studies, name=name, arguments=arguments)
            self._socket.send(msgspec.msgpack.encode(study))
        await self._until(self._end)
        self.doing = "waiting for the next study"
        return self._end.result()

    def suspend(self) -> None:
        """Stop the process and its compilers where they are; they take no core until `proceed`."""
        self._signal(signal.SIGSTOP)

    def proceed(self) -> None:
        """Let a suspended process go on."""
        self._signal(signal.SIGCONT)

    async def end(self, in_order: bool) -> None:
        """End the process, if there is one: ask it to stop, or, not `in_order`, at once."""
        life = self._life
        if life is None or life.done():
            return
        self._leaving = True
        self.proceed()  # a suspended process obeys nobody
        if in_order:
            life.cancel()
        else:
            self._unwanted.set()
        await asyncio.wait({life})

    async def _until(self, news: asyncio.Future[None] | asyncio.Future[bytes]) -> None:
        assert self._life is not None
        await asyncio.wait({news, self._life}, return_when=asyncio.FIRST_COMPLETED)
        if not news.done():
            how = f"{NAME} was stopped" if self._life.cancelled() else self._life.result()
            raise StudyInterrupted(f"{how}; the next call starts a new one")

    async def _live(self) -> str:
        """One life, from bind to the end of the process; returns how it ended."""
        with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as folder, zmq.Context() as context:
            address = f"ipc://{folder}/anatomy.sock"
            self._socket = socket = ChildSocket(context, address, self._received)
            try:
                process = await spawn(self._command, self._describe(address), self._cores)
                self.pid = process.pid
                why = "was no longer wanted"
                return await watch(NAME, process, socket, self._unwanted, why)
            except OSError as error:
                return f"{NAME} could not be started: {error}"
            finally:
                self._signal(signal.SIGKILL)  # its compilers would go on without it, and disturb the engine
                self._socket = self.pid = self.doing = None
                socket.close()

    def _received(self, frame: bytes) -> None:
        """One message from the process. Raises msgspec.DecodeError where it is none that we know."""
        message = self._decode(frame)
        if isinstance(message, Ready):
            self._ready.set_result(None)
        elif message.id != self._studies or self._end.done():
            return
        elif isinstance(message, StudyProgress):
            self.doing = message.text
            log.debug("study %d: %s", message.id, message.text)
        elif isinstance(message, Finding):
            self._end.set_result(message.body)
        else:
            self._end.set_exception(from_problem(message.problem))

    def _signal(self, number: signal.Signals) -> None:
        """To the process and what it started: it leads a group of its own."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)
