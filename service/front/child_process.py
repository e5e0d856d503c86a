"""A child process of the front: its socket, its output, how it is spawned, watched and ended."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from service.frames import FrameStream, accept, listen
from service.machine import children_on
from service.parent_death import owned
from service.records import Doing, EngineSettings, Stop

log = logging.getLogger("launchbound.child_process")

STOP_SECONDS, TERMINATE_SECONDS = 2.0, 1.0
"""How long a child has to end after a Stop, and after a SIGTERM."""

LAST_MESSAGES_SECONDS = 0.02


def module_command(module: str) -> tuple[str, ...]:
    return sys.executable, "-m", module


async def spawn(
    command: Sequence[str], settings: EngineSettings, cores: set[int], output: ChildOutput
) -> Process:
    """Start a child that may use all of `cores`; its settings are appended to `command` as JSON.

    It has a session of its own, so that Ctrl-C reaches the front alone, and gets SIGKILL where the front
    dies: a suspended process does not handle SIGTERM. Raises OSError where it cannot be started.
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


def has_ended(pid: int) -> bool:
    """Whether the first thread of child `pid` has ended. The kernel tells its parent after the last has."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:  # reaped already
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


async def watch(
    name: str,
    process: Process,
    socket: ChildSocket,
    process_watch: ProcessWatch,
    terminate: asyncio.Future[str],
) -> str:
    """Wait for the end of the process; kill it once `terminate` has a reason or a message cannot be decoded.

    `terminate` gets a reason where the process hangs. Returns how it ended, as a sentence; all that it
    started has then ended too. Cancelled, it sends Stop and waits for the end.
    """
    exited = asyncio.create_task(process.wait())
    watching = asyncio.create_task(check_until_hung(process_watch, terminate))
    try:
        ends: set[asyncio.Future[Any]] = {exited, terminate, socket.broken}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if exited.done():
            # Its last messages count, and may arrive in the socket a moment later.
            await asyncio.sleep(LAST_MESSAGES_SECONDS)
            socket.drain()
            return f"{name} ended {_how(exited.result())}"
        if terminate.done():
            why = terminate.result()
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
        watching.cancel()
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
        stream = self._stream
        if stream is None:
            return
        try:
            stream.flush()
        except ConnectionError:
            self._disconnect(stream)
            return
        if not stream.unsent:
            self._loop.remove_writer(stream.fileno())

    def _disconnect(self, stream: FrameStream) -> None:
        self._loop.remove_reader(stream.fileno())
        self._loop.remove_writer(stream.fileno())
        stream.close()
        self._stream = None


READ_BYTES = 65_536

MOST_LINE_BYTES = 8192
"""A longer line is cut in two."""


class ChildOutput:
    """A pipe for a child's output, whose lines are logged as those of `component`.

    Lines that begin with `launchbound`, our own, are warnings. The pipe is not asyncio's, which would wait
    for its end: the child's own children may keep it open.
    """

    def __init__(self, component: str) -> None:
        self._log = logging.getLogger(f"launchbound.{component}")
        self._prefixes = (f"launchbound {component}: ", "launchbound: ")
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
        """Take what has arrived; returns whether there was anything."""
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
            self._write(line.decode(errors="replace").rstrip())

    def _write(self, line: str) -> None:
        for prefix in self._prefixes:
            if line.startswith(prefix):
                self._log.warning("%s", line.removeprefix(prefix))
                return
        if line:
            self._log.info("%s", line)


PROC = Path("/proc")

_AT_WORK = frozenset("RDt")
"""Runs or waits for a core, waits for a disk, or is held by a debugger."""

_STATE, _MAJOR_FAULTS, _OWN_TIMES, _CPU_TIMES = 0, 9, slice(11, 13), slice(11, 15)
"""Fields behind the name in /proc/PID/stat: state; page faults that waited for a disk; user and system time,
without and with that of children that have ended.
"""

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process and its descendants do: their `cpu_ticks` so far, and whether one may be `at_work`.

    Of the process alone: whether SIGSTOP has `stopped` it, CPU time by thread, and its `major_faults`.
    """

    cpu_ticks: int
    at_work: bool
    stopped: bool
    thread_ticks: Mapping[int, int] = field(default_factory=dict)
    major_faults: int = 0


def activity(pid: int) -> Activity | None:
    """What process `pid` and its descendants do now; None where that cannot be read."""
    if not _children_are_listed():
        return None
    try:
        stats = [_stat(PROC / str(one)) for one in _with_descendants(pid)]
        threads = {int(task.name): _stat(task) for task in (PROC / str(pid) / "task").iterdir()}
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # one of them has just ended
    return Activity(
        cpu_ticks=sum(_ticks(stat, _CPU_TIMES) for stat in stats),
        at_work=any(stat[_STATE] in _AT_WORK for stat in stats),
        stopped=stats[0][_STATE] == "T",
        thread_ticks={thread: _ticks(stat, _OWN_TIMES) for thread, stat in threads.items()},
        major_faults=int(stats[0][_MAJOR_FAULTS]),
    )


def _children_are_listed() -> bool:
    """Whether this kernel lists the children of a process (CONFIG_PROC_CHILDREN)."""
    return (PROC / f"self/task/{threading.get_native_id()}/children").exists()


def _stat(folder: Path) -> list[str]:
    return (folder / "stat").read_text().rpartition(")")[2].split()


def _ticks(stat: list[str], times: slice) -> int:
    return sum(map(int, stat[times]))


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    for task in (PROC / str(pid) / "task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _with_descendants(int(child))


CHECK_SECONDS = 1.0
"""How often a process is checked."""

STARTING = Doing(what="starting", limit_seconds=60.0)
"""Until an engine's first message, which it sends before it imports torch."""

QUIET_SECONDS = 2.5
"""For so long after a message /proc is not read: an engine that serves sends one a second."""

STILL_SECONDS = 8.0
"""An engine hangs after so long without a message, CPU time, or a core or disk that it waits for."""

PAGING_FAULTS = 64.0
"""With so many major faults a second, a process spends its CPU time on its pages."""


class ProcessWatch:
    """Decides whether a process hangs: it exceeds the time or CPU time that it announced, or stands still.

    A process that is stopped or waits for a lock stands still; one in an endless loop exceeds a limit. A step
    that waits for a core, or for pages from a disk, takes long but uses no more CPU time. `watching` False:
    the process is stopped on purpose.
    """

    def __init__(
        self, pid: int, look: Callable[[int], Activity | None] = activity, doing: Doing = STARTING
    ) -> None:
        self._pid = pid
        self._look = look
        self._silent_seconds = 0.0
        self._still_seconds = 0.0
        self._busy_seconds = 0.0
        self._seen: Activity | None = None
        self.doing = doing
        self.watching = True

    def heard(self, doing: Doing | None = None) -> None:
        """A message arrived; `doing` where it is one."""
        self._silent_seconds = self._still_seconds = self._busy_seconds = 0.0
        self._seen = None
        if doing is not None:
            self.doing = doing

    def hung(self, passed_seconds: float) -> str | None:
        """Why the process counts as hung after `passed_seconds` more; None where it does not.

        A longer time than between two checks means that this process was suspended, and counts only in part.
        """
        if not self.watching:
            return None
        passed = min(passed_seconds, 2 * CHECK_SECONDS)
        self._silent_seconds += passed
        doing = self.doing
        if self._silent_seconds > doing.limit_seconds:
            limit = f"{doing.limit_seconds:.0f} s it may take"
            return f"has been {doing.what} for {self._silent_seconds:.0f} s, over the {limit},"
        if self._silent_seconds < QUIET_SECONDS:
            return None
        before, self._seen = self._seen, self._look(self._pid)
        if before is None or self._seen is None:
            self._still_seconds = 0.0
            return None
        return self._judge(before, self._seen, passed)

    def _judge(self, before: Activity, now: Activity, passed: float) -> str | None:
        doing = self.doing
        still = _stands_still(before, now, doing)
        self._still_seconds = self._still_seconds + passed if still else 0.0
        if self._still_seconds > STILL_SECONDS:
            return f"has stood still for {self._silent_seconds:.0f} s while {doing.what}"
        self._busy_seconds += _computed_seconds(before, now, passed)
        most = doing.busy_limit_seconds
        if most is not None and self._busy_seconds >= most:
            used = f"{self._busy_seconds:.0f} s of CPU time within one step"
            return f"has used {used} while {doing.what}, over the {most:.0f} s that any may take,"
        return None


def _stands_still(before: Activity, now: Activity, doing: Doing) -> bool:
    if doing.may_wait and not now.stopped:
        return False
    return not now.at_work and now.cpu_ticks == before.cpu_ticks


def _computed_seconds(before: Activity, now: Activity, passed: float) -> float:
    """CPU time of its busiest thread, at most `passed` seconds; none while it pages."""
    if now.major_faults - before.major_faults > PAGING_FAULTS * passed:
        return 0.0
    used = (ticks - before.thread_ticks.get(thread, 0) for thread, ticks in now.thread_ticks.items())
    return min(passed, max(used, default=0) / TICKS_PER_SECOND)


async def check_until_hung(process_watch: ProcessWatch, stuck: asyncio.Future[str]) -> None:
    """Check a process until it hangs; then `stuck` is the reason."""
    before = monotonic()
    while not stuck.done():
        await asyncio.sleep(CHECK_SECONDS)
        now = monotonic()
        reason = process_watch.hung(now - before)
        before = now
        if reason is not None and not stuck.done():
            stuck.set_result(reason)
