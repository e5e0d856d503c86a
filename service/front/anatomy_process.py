"""The anatomy process: started when needed, suspended, and ended with all its children."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Protocol

import msgspec

from service.front.child_process import (
    ChildOutput,
    ChildSocket,
    ProcessWatch,
    has_ended,
    module_command,
    spawn,
    watch,
)
from service.front.errors import StudyInterrupted, from_problem
from service.records import Doing, EngineSettings, Finding, FromAnatomy, Ready, Study, StudyProgress

log = logging.getLogger("launchbound.anatomy")

ANATOMY_COMMAND = module_command("service.anatomy.process")
NAME = "the anatomy process"

STARTING = Doing(what="starting", limit_seconds=3600.0, may_wait=True)
"""It may load its model from a hub, which may not answer."""

STUDYING = Doing(what="running a study", limit_seconds=math.inf)
AT_REST = Doing(what="waiting for the next study", limit_seconds=math.inf, may_wait=True)
"""How long a study may take is for `StudyRunner`; here it is only to be seen at work."""


class Heard(Protocol):
    """Takes what a study does now; `done` of `total` alike parts are finished, where there are such."""

    def __call__(self, text: str, done: int | None = None, total: int | None = None, /) -> None:
        """Take it."""


def unheard(text: str, done: int | None = None, total: int | None = None, /) -> None:
    """Where nobody asked for progress."""


class AnatomyProcess:
    """At most one process at a time. `doing`: what it reports to be doing; None where there is none."""

    def __init__(
        self, settings_for: Callable[[str], EngineSettings], command: Sequence[str] = ANATOMY_COMMAND
    ) -> None:
        self._settings_for = settings_for
        self._command = tuple(command)
        self._cores = os.sched_getaffinity(0)
        self._process_task: asyncio.Task[str] | None = None
        self._socket: ChildSocket | None = None
        self._ending = False
        self._watch: ProcessWatch | None = None
        self._studies = 0
        self._heard: Heard = unheard
        self.pid: int | None = None
        self.doing: str | None = None
        self._decode = msgspec.msgpack.Decoder(FromAnatomy).decode

    async def start(self) -> None:
        """Start the process unless it runs; returns once its model is loaded. One that has just died is none.

        Raises StudyInterrupted where the process ends before that.
        """
        if self._process_task is not None and not self._process_task.done():
            ending = self._ending or self._terminate.done()
            if not ending and (self.pid is None or not has_ended(self.pid)):
                return
            await asyncio.wait({self._process_task})
        self._ending = False
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._terminate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.doing = "starting"
        self._process_task = asyncio.create_task(self._run_process(), name="anatomy-process")
        await self._wait_for(self._ready)

    async def run(self, name: str, arguments: bytes, heard: Heard = unheard) -> bytes:
        """The finding of study `name` as JSON, from the process that `start` began; its progress is `heard`.

        Raises StudyInterrupted where it ends before that, or the error that refused the study.
        """
        self._studies += 1
        self._heard = heard
        self._end: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._socket is not None:
            study = Study(id=self._studies, name=name, arguments=arguments)
            self._socket.send(msgspec.msgpack.encode(study))
        self._announce(STUDYING)
        await self._wait_for(self._end)
        self._announce(AT_REST)
        self.doing = AT_REST.what
        return self._end.result()

    def suspend(self) -> None:
        """Stop the process and its compilers (SIGSTOP); they use no core until `resume`."""
        self._announce(None)
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a suspended process."""
        self._signal(signal.SIGCONT)
        self._announce(STUDYING)

    def _announce(self, doing: Doing | None) -> None:
        """What the process is expected to do, and be seen to do, from now on; None: nothing at all."""
        if self._watch is not None:
            self._watch.watching = doing is not None
            self._watch.heard(doing)

    async def end(self, in_order: bool) -> None:
        """End the process, if there is one: by Stop and a timeout, or, not `in_order`, at once."""
        running = self._process_task
        if running is None or running.done():
            return
        self._ending = True
        self.resume()  # a suspended process handles no message and no SIGTERM
        if in_order:
            running.cancel()
        else:
            self.kill()
        await asyncio.wait({running})

    def kill(self) -> None:
        """End the process at once, if there is one."""
        if self._process_task is not None and not self._terminate.done():
            self._terminate.set_result("was no longer needed")

    async def _wait_for(self, result: asyncio.Future[None] | asyncio.Future[bytes]) -> None:
        assert self._process_task is not None
        await asyncio.wait({result, self._process_task}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            how = f"{NAME} was stopped" if self._process_task.cancelled() else self._process_task.result()
            raise StudyInterrupted(f"{how}; the next call starts a new one")

    async def _run_process(self) -> str:
        """Run one process, from bind to its end; returns how it ended."""
        try:
            with (
                closing(ChildSocket("anatomy", self._received)) as self._socket,
                closing(ChildOutput("anatomy")) as output,
            ):
                settings = self._settings_for(self._socket.address)
                process = await spawn(self._command, settings, self._cores, output)
                self.pid = process.pid
                self._watch = ProcessWatch(process.pid, doing=STARTING)
                return await watch(NAME, process, self._socket, self._watch, self._terminate)
        except OSError as error:
            return f"{NAME} could not be started: {error}"
        finally:
            self._socket = self.pid = self.doing = self._watch = None

    def _received(self, frame: bytes) -> None:
        """One message from the process. Raises msgspec.DecodeError for anything but a `FromAnatomy`."""
        message = self._decode(frame)
        if self._watch is not None:
            self._watch.heard()
        if isinstance(message, Ready):
            self._announce(AT_REST)
            self._ready.set_result(None)
        elif message.id != self._studies or self._end.done():
            return
        elif isinstance(message, StudyProgress):
            self.doing = message.text
            log.debug("study %d: %s", message.id, message.text)
            self._heard(message.text, message.done, message.total)
        elif isinstance(message, Finding):
            self._end.set_result(message.body)
        else:
            self._end.set_exception(from_problem(message.problem))

    def _signal(self, number: signal.Signals) -> None:
        """Send to the process and its children: it leads a process group."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)
