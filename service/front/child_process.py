"""A child process of the front: its socket, its output, how it is spawned, watched and ended."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

import msgspec
import psutil

from service.frames import FrameStream, accept, listen
from service.machine import children_on
from service.parent_death import owned
from service.records import Doing, EngineSettings, Stop

log = logging.getLogger("launchbound.child_process")

STOP_SECONDS, TERMINATE_SECONDS = 2.0, 1.0

LAST_MESSAGES_SECONDS = 0.02

STARTING = Doing(what="starting", limit_seconds=60.0)
"""Until an engine's first message, which it sends before it imports torch."""

Component = Literal["engine", "anatomy"]

NAMES = {"engine": "the engine", "anatomy": "the anatomy process"}


def module_command(module: str) -> tuple[str, ...]:
    return sys.executable, "-m", module


Started = Callable[[Process, "ChildSocket", "ProcessWatch"], None]


async def run_child(
    component: Component,
    command: Sequence[str],
    settings_for: Callable[[str], EngineSettings],
    cores: set[int],
    received: Callable[[bytes], None],
    started: Started,
    doing: Doing = STARTING,
) -> tuple[str, int | None]:
    """Run one child, from its socket to its end; returns how it ended, as a sentence, and its exit code.

    `settings_for` takes the address of its socket, `received` each message. Cancelled, it stops the child.
    """
    try:
        with closing(ChildSocket(component, received)) as socket, closing(ChildOutput(component)) as output:
            process = await spawn(command, settings_for(socket.address), cores, output)
            process_watch = ProcessWatch(process.pid, doing=doing)
            started(process, socket, process_watch)
            return await _watch(NAMES[component], process, socket, process_watch), process.returncode
    except OSError as error:
        return f"{NAMES[component]} could not be started: {error}", None


async def spawn(
    command: Sequence[str], settings: EngineSettings, cores: set[int], output: ChildOutput
) -> Process:
    """Start a child that may use all of `cores`; its settings are appended to `command` as JSON.

    It has a session of its own, so that Ctrl-C reaches the front alone, and gets SIGKILL where the front
    dies: a suspended process does not handle SIGTERM.
    """
    argument = msgspec.json.encode(settings).decode()
    with children_on(cores):
        return await asyncio.create_subprocess_exec(
            *owned((*command, argument), signal.SIGKILL),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output.descriptor,
            stderr=output.descriptor,
            start_new_session=True,
        )


async def _watch(name: str, process: Process, socket: ChildSocket, process_watch: ProcessWatch) -> str:
    """How it ended, with all that it started; killed where it hangs or sends what cannot be decoded."""
    exited = asyncio.create_task(process.wait())
    hung = asyncio.create_task(_until_hung(process_watch))
    try:
        ends: set[asyncio.Future[Any]] = {exited, hung, socket.broken}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if exited.done():
            # Its last messages count, and may arrive in the socket a moment later.
            await asyncio.sleep(LAST_MESSAGES_SECONDS)
            socket.drain()
            return f"{name} ended {_how(exited.result())}"
        if hung.done():
            why = hung.result()
        else:
            why = f"sent a message that cannot be decoded ({socket.broken.result()})"
        process.kill()
        await process.wait()
        return f"{name} {why} and was ended"
    except asyncio.CancelledError:
        await _end(name, process, stop_sent=socket.send(msgspec.msgpack.encode(Stop())))
        raise
    finally:
        exited.cancel()
        hung.cancel()
        kill_group(process.pid)  # else its compilers would run on


def kill_group(pid: int | None) -> None:
    """Kill a child of `spawn`, which leads a process group, and all that it started, such as compilers."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


async def _end(name: str, process: Process, stop_sent: bool) -> None:
    """Send SIGTERM, then SIGKILL, each after a timeout; `stop_sent`: wait for the end first."""
    steps = ((STOP_SECONDS if stop_sent else 0.0, signal.SIGTERM), (TERMINATE_SECONDS, signal.SIGKILL))
    for seconds, next_signal in steps:
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            log.warning("%s did not end in %.0f s: sending %s", name, seconds, next_signal.name)
            with suppress(ProcessLookupError):  # it may just have ended
                process.send_signal(next_signal)
        else:
            return
    await process.wait()


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    return f"by signal {-code} ({signal.Signals(-code).name})"


class ChildSocket:
    """Listens for one child at `address`, a secret. `received` gets each frame; `broken`, what it raises."""

    def __init__(self, name: str, received: Callable[[bytes], None]) -> None:
        self.address = f"launchbound-{secrets.token_hex(16)}-{name}"
        self._listener = listen(self.address)
        self._listener.setblocking(False)
        self._received = received
        self._stream: FrameStream | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self.broken: asyncio.Future[Exception] = self._loop.create_future()

    def send(self, frame: bytes) -> bool:
        """Send a frame without blocking. False: no process is connected."""
        stream = self._stream
        if stream is None:
            return False
        try:
            stream.send(frame)
        except ConnectionError:
            return False
        if stream.unsent:
            self._loop.add_writer(stream.fileno(), self._flush)
        return True

    def drain(self) -> None:
        stream = self._stream
        if stream is None:
            return
        try:
            for frame in stream.receive():
                self._received(frame)
        except EOFError:  # `watch` reports how the process ended
            self._disconnect(stream)
        except Exception as error:  # noqa: BLE001 - whatever a frame caused, the supervisor ends this process
            if not self.broken.done():
                self.broken.set_result(error)

    def close(self) -> None:
        """Stop listening; what is not yet sent is dropped."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        if self._stream is not None:
            self._disconnect(self._stream)

    def _accept(self) -> None:
        stream = accept(self._listener)
        if stream is not None:
            self._loop.remove_reader(self._listener.fileno())  # one child, one connection
            self._stream = stream
            self._loop.add_reader(stream.fileno(), self.drain)

    def _flush(self) -> None:
        assert self._stream is not None
        try:
            self._stream.flush()
        except ConnectionError:
            self._disconnect(self._stream)
        else:
            if not self._stream.unsent:
                self._loop.remove_writer(self._stream.fileno())

    def _disconnect(self, stream: FrameStream) -> None:
        self._loop.remove_reader(stream.fileno())
        self._loop.remove_writer(stream.fileno())
        stream.close()
        self._stream = None


READ_BYTES = 65_536

MOST_LINE_BYTES = 8192
"""A longer line is cut in two."""


class ChildOutput:
    """A pipe for a child's output, whose lines are logged as those of `component`; our own are warnings.

    It is not asyncio's, which would wait for its end: the child's own children may keep it open.
    """

    def __init__(self, component: str) -> None:
        self._log = logging.getLogger(f"launchbound.{component}")
        self._own = re.compile(f"launchbound( {component})?: ")
        self._unfinished = b""
        self._reads, self.descriptor = os.pipe()
        os.set_blocking(self._reads, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reads, self._read)

    def close(self) -> None:
        """The child has ended: log what is still in the pipe, and close it."""
        self._loop.remove_reader(self._reads)
        while self._read():
            continue
        self._take(b"\n" if self._unfinished else b"")
        os.close(self._reads)
        os.close(self.descriptor)

    def _read(self) -> bool:
        try:
            data = os.read(self._reads, READ_BYTES)
        except BlockingIOError:
            return False
        self._take(data)
        return bool(data)

    def _take(self, data: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        while len(self._unfinished) > MOST_LINE_BYTES:
            lines.append(self._unfinished[:MOST_LINE_BYTES])
            self._unfinished = self._unfinished[MOST_LINE_BYTES:]
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if own := self._own.match(text):
                self._log.warning("%s", text[own.end() :])
            elif text:
                self._log.info("%s", text)


@dataclass(frozen=True, slots=True)
class Activity:
    """Of a process and its descendants: CPU time so far, and whether one runs or waits for core or disk."""

    cpu_seconds: float
    at_work: bool
    stopped: bool


AT_WORK = {psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP, psutil.STATUS_TRACING_STOP}


def activity(pid: int) -> Activity | None:
    """What process `pid` and its descendants do now; None where one of them has just ended."""
    try:
        process = psutil.Process(pid)
        all_of_it = [process, *process.children(recursive=True)]
        return Activity(
            cpu_seconds=sum(sum(one.cpu_times()) for one in all_of_it),
            at_work=any(one.status() in AT_WORK for one in all_of_it),
            stopped=process.status() == psutil.STATUS_STOPPED,
        )
    except psutil.Error:
        return None


CHECK_SECONDS = 1.0

QUIET_SECONDS = 2.5
"""For so long after a message the process is not examined: an engine that serves sends one a second."""

STILL_SECONDS = 8.0
"""An engine hangs after so long without a message, CPU time, or a core or disk that it waits for."""


class ProcessWatch:
    """Decides whether a process hangs: it exceeds the time that it announced, or stands still.

    A process that is stopped or waits for a lock stands still; one in an endless loop exceeds its time."""

    def __init__(
        self, pid: int, examine: Callable[[int], Activity | None] = activity, doing: Doing = STARTING
    ) -> None:
        self._pid = pid
        self._examine = examine
        self._quiet_seconds = 0.0
        self._still_seconds = 0.0
        self._last: Activity | None = None
        self.doing = doing

    def heard(self, doing: Doing | None = None) -> None:
        self._quiet_seconds = self._still_seconds = 0.0
        self._last = None
        if doing is not None:
            self.doing = doing

    def hung(self, passed_seconds: float) -> str | None:
        """Why the process counts as hung after `passed_seconds` more; None where it does not."""
        # Longer than between two checks: this process was suspended.
        passed = min(passed_seconds, 2 * CHECK_SECONDS)
        self._quiet_seconds += passed
        doing = self.doing
        if self._quiet_seconds > doing.limit_seconds:
            limit = f"{doing.limit_seconds:.0f} s it may take"
            return f"has been {doing.what} for {self._quiet_seconds:.0f} s, over the {limit},"
        if self._quiet_seconds < QUIET_SECONDS:
            return None
        before, self._last = self._last, self._examine(self._pid)
        still = before is not None and self._last is not None and _stands_still(before, self._last, doing)
        self._still_seconds = self._still_seconds + passed if still else 0.0
        if self._still_seconds > STILL_SECONDS:
            return f"has stood still for {self._quiet_seconds:.0f} s while {doing.what}"
        return None


def _stands_still(before: Activity, now: Activity, doing: Doing) -> bool:
    if doing.may_wait and not now.stopped:
        return False
    return not now.at_work and now.cpu_seconds == before.cpu_seconds


async def _until_hung(process_watch: ProcessWatch) -> str:
    before = monotonic()
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        now = monotonic()
        if (reason := process_watch.hung(now - before)) is not None:
            return reason
        before = now
