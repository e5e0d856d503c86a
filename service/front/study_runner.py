"""Studies, one at a time, in the anatomy process, which works only while the engine is paused."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import tempfile
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fcntl import LOCK_EX, LOCK_NB, flock
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from service.front.child_process import ChildSocket, ProcessWatch, kill_group, module_command, run_child
from service.front.engine_client import EngineClient
from service.front.errors import (
    AnatomyBusy,
    DeadlinePassed,
    Draining,
    ModeNotReady,
    NotFound,
    RunInProgress,
    StudyInterrupted,
    from_problem,
)
from service.front.settings import Settings
from service.records import Doing, EngineSettings, Finding, FromAnatomy, Ready, Study, StudyProgress

log = logging.getLogger("launchbound.anatomy")

CHECK_SECONDS = 1.0

RUN_SECONDS = 30.0
"""A sweep is in progress until this long after its last request ended."""


Heard = Callable[[str, int | None, int | None], None]
"""Takes what a study does now, and of parts that are alike how many of how many are finished."""


def unheard(*_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class StudyResult:
    """A finding as JSON, the `files` that it wrote, and the `seconds` of `wait`, `start` and `study`."""

    body: bytes
    seconds: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return len(self.body) + sum(map(len, self.files.values()))


class StudyRunner:
    """Admits studies, pauses the engine for them, and ends them for requests that waited too long."""

    def __init__(self, client: EngineClient, process: AnatomyProcess, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        # No request waits for a study longer than half its own timeout.
        self._longest_wait = settings.request_timeout_seconds / 2
        self.process = process
        self.sweeps = SweepTracker(client.pause.break_off)
        self._busy = False
        self._idle: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    async def study(
        self, name: str, arguments: Mapping[str, Any], heard: Heard = unheard, with_files: bool = False
    ) -> StudyResult:
        """Run the study `name`; cancelled, it ends the process at once.

        `heard` takes its progress, first when it is admitted. `with_files`: it gets a folder for files.
        Raises what refuses it (Draining, ModeNotReady, RunInProgress, AnatomyBusy) or ends it.
        """
        self._admit()
        self._busy = True
        if self._idle is not None:
            self._idle.cancel()
        try:
            if not with_files:
                return await self._run(name, arguments, heard)
            with folder_for_files() as folder:
                found = await self._run(name, {**arguments, "out": str(folder)}, heard)
                files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
                return replace(found, files=files)
        finally:
            self._client.pause.end()
            self._busy = False
            idle_seconds = self._settings.anatomy_idle_seconds
            self._idle = asyncio.get_running_loop().call_later(idle_seconds, self._end_idle)

    async def stop(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        await self.process.end(in_order=True)

    def _admit(self) -> None:
        if self._client.draining:
            raise Draining("the service is shutting down and takes no new studies; try another instance")
        if self._client.engine is None:
            raise ModeNotReady(
                self._client.down_reason,
                type="engine_not_ready",
                retry_after_seconds=self._client.retry_after_seconds,
            )
        if modes := self._client.warming():
            # The engine cannot pause while it compiles.
            message = f"studies begin when the engine is warm; {', '.join(modes)} not yet"
            raise ModeNotReady(message, type="warming")
        self.sweeps.refuse("a study")
        if self._busy:
            raise AnatomyBusy(
                f"another study is under way ({self.process.doing}); they run one at a time",
                retry_after_seconds=5,
            )

    async def _run(self, name: str, arguments: Mapping[str, Any], heard: Heard) -> StudyResult:
        began = monotonic()
        heard("waiting for the engine to pause", None, None)
        try:
            async with asyncio.timeout(self._settings.request_timeout_seconds):
                await self._client.pause.begin()
        except TimeoutError:
            limit = self._settings.request_timeout_seconds
            message = f"the engine had work for more than {limit:g} s; try again with less load"
            raise DeadlinePassed(message) from None
        seconds = {"wait": monotonic() - began}
        encoded = msgspec.json.encode(arguments)
        working = asyncio.create_task(self._work(name, encoded, heard, seconds))
        try:
            await self._attend(working)
            return StudyResult(working.result(), seconds)
        finally:
            if not working.done():
                working.cancel()
                await self.process.end(in_order=False)
            await asyncio.gather(working, return_exceptions=True)

    async def _work(self, name: str, arguments: bytes, heard: Heard, seconds: dict[str, float]) -> bytes:
        began = monotonic()
        if self.process.doing is None:
            heard("starting the process that studies run in", None, None)
        await self.process.start()
        seconds["start"] = monotonic() - began
        body = await self.process.run(name, arguments, heard)
        seconds["study"] = monotonic() - began - seconds["start"]
        return body

    async def _attend(self, work: asyncio.Task[bytes]) -> None:
        """Wait for the end of `work`, for as long as it may take and requests may wait for it."""
        pause, limit = self._client.pause, self._settings.hang_seconds
        ends = monotonic() + limit
        while True:
            assert pause.lost is not None
            events: set[asyncio.Future[Any]] = {work, pause.lost}
            await asyncio.wait(events, timeout=CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if pause.lost.done():
                raise pause.lost.result()
            if work.done():
                return
            if monotonic() > ends:
                raise DeadlinePassed(
                    f"the study took more than {limit:g} s and was given up: ask for fewer"
                    " rounds, sizes, modes or batches, or set LAUNCHBOUND_HANG_SECONDS higher"
                )
            if self._client.longest_wait_seconds() > self._longest_wait:
                raise StudyInterrupted(
                    f"a request has waited for more than {self._longest_wait:g} s: run the study again when"
                    " there is less to serve"
                )

    def _end_idle(self) -> None:
        log.info("no study for %g s: the anatomy process ends", self._settings.anatomy_idle_seconds)
        self._ending = asyncio.create_task(self.process.end(in_order=True))


class SweepTracker:
    """Whether a sweep is in progress. `stop_study` is called at each of its requests: a study disturbs it."""

    def __init__(self, stop_study: Callable[[RunInProgress], None]) -> None:
        self._stop_study = stop_study
        self._requests = 0
        self._last: float | None = None

    def began(self) -> None:
        self._requests += 1
        self._stop_study(_run_in_progress("began", "a study", RUN_SECONDS))

    def ended(self) -> None:
        self._requests -= 1
        self._last = monotonic()

    def refuse(self, what: str) -> None:
        """Raise RunInProgress where a sweep is in progress, which `what` would disturb."""
        if left := self.seconds_left():
            raise _run_in_progress("is in progress", what, left)

    def seconds_left(self) -> float:
        """Until the sweep counts as over if no further request arrives; 0 without a sweep."""
        if self._requests:
            return RUN_SECONDS
        return 0.0 if self._last is None else max(0.0, self._last + RUN_SECONDS - monotonic())


def _run_in_progress(state: str, what: str, seconds_left: float) -> RunInProgress:
    message = f"a sweep {state}, which {what} would disturb: wait until it has ended"
    return RunInProgress(message, retry_after_seconds=math.ceil(seconds_left))


ANATOMY_COMMAND = module_command("service.anatomy.process")

STARTING = Doing(what="starting", limit_seconds=3600.0, may_wait=True)
"""It may load its model from a hub, which may not answer."""

STUDYING = Doing(what="running a study", limit_seconds=math.inf)
AT_REST = Doing(what="waiting for the next study", limit_seconds=math.inf, may_wait=True)
"""`StudyRunner` limits how long a study takes; here it only must be seen at work."""


class AnatomyProcess:
    """At most one process at a time. `doing`: what it reports to be doing; None where there is none."""

    def __init__(
        self, settings_for: Callable[[str], EngineSettings], command: Sequence[str] = ANATOMY_COMMAND
    ) -> None:
        self._settings_for = settings_for
        self._command = tuple(command)
        self._cores = os.sched_getaffinity(0)
        self._process: Process | None = None
        self._socket: ChildSocket | None = None
        self._watch: ProcessWatch | None = None
        self._running: asyncio.Task[str] | None = None
        self._ending = False
        self._studies = 0
        self._heard: Heard = unheard
        self.doing: str | None = None
        self._decode = msgspec.msgpack.Decoder(FromAnatomy).decode

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the process unless it runs; returns once its model is loaded, or raises StudyInterrupted."""
        if self._running is not None and not self._running.done():
            if not self._ending and (self._process is None or self._process.returncode is None):
                return
            await asyncio.wait({self._running})
        self._ending = False
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self.doing = "starting"
        self._running = asyncio.create_task(self._run_process(), name="anatomy-process")
        await self._wait_for(self._ready)

    async def run(self, name: str, arguments: bytes, heard: Heard = unheard) -> bytes:
        """The finding of study `name` as JSON. Raises StudyInterrupted, or what refused the study."""
        self._studies += 1
        self._heard = heard
        self._end: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._socket is not None:
            study = Study(id=self._studies, name=name, arguments=arguments)
            self._socket.send(msgspec.msgpack.encode(study))
        self._expect(STUDYING)
        await self._wait_for(self._end)
        self._expect(AT_REST)
        self.doing = AT_REST.what
        return self._end.result()

    async def end(self, in_order: bool) -> None:
        if self._running is None or self._running.done():
            return
        if not in_order:
            self.kill()
        self._ending = True
        self._running.cancel()
        await asyncio.wait({self._running})

    def kill(self) -> None:
        self._ending = True
        kill_group(self.pid)

    def _expect(self, doing: Doing) -> None:
        if self._watch is not None:
            self._watch.heard(doing)

    async def _wait_for(self, result: asyncio.Future[None] | asyncio.Future[bytes]) -> None:
        assert self._running is not None
        await asyncio.wait({result, self._running}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            stopped = self._running.cancelled()
            how = "the anatomy process was stopped" if stopped else self._running.result()
            raise StudyInterrupted(f"{how}; the next call starts a new one")

    async def _run_process(self) -> str:
        command, cores = self._command, self._cores
        try:
            how, _ = await run_child(
                "anatomy", command, self._settings_for, cores, self._received, self._started, STARTING
            )
            return how
        finally:
            self._socket = self._process = self.doing = self._watch = None

    def _started(self, process: Process, socket: ChildSocket, process_watch: ProcessWatch) -> None:
        self._process, self._socket, self._watch = process, socket, process_watch

    def _received(self, frame: bytes) -> None:
        """One message from the process. Raises msgspec.DecodeError for anything but a `FromAnatomy`."""
        message = self._decode(frame)
        if self._watch is not None:
            self._watch.heard()
        if isinstance(message, Ready):
            self._expect(AT_REST)
            self._ready.set_result(None)
        elif message.id != self._studies or self._end.done():
            return
        elif isinstance(message, StudyProgress):
            self.doing = message.text
            self._heard(message.text, message.done, message.total)
        elif isinstance(message, Finding):
            self._end.set_result(message.body)
        else:
            self._end.set_exception(from_problem(message.problem))


FOLDER_PREFIX = "launchbound-study-"


@contextmanager
def folder_for_files() -> Iterator[Path]:
    """A private folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder:
        held = os.open(folder, os.O_RDONLY)
        flock(held, LOCK_EX)
        try:
            yield Path(folder)
        finally:
            os.close(held)


def remove_abandoned_folders() -> None:
    """Remove the folders of fronts that were killed during a study: nobody holds their locks any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):  # it is another user's, in use, or gone already
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                flock(held, LOCK_EX | LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(held)


MOST_BYTES = 128 * 2**20
"""Of all findings with their files: an answer of the largest kind has a hundred KB, a trace some more."""


@dataclass(frozen=True, slots=True)
class KeptFinding:
    id: str
    study: str
    arguments: dict[str, Any]
    created: str
    result: StudyResult


class Findings:
    """Findings of at most `most_bytes` together; the oldest are dropped, never the newest one."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[str, KeptFinding] = {}
        self._numbers = count(1)

    def keep(self, study: str, arguments: dict[str, Any], result: StudyResult) -> KeptFinding:
        created = datetime.now(UTC).isoformat(timespec="seconds")
        found = KeptFinding(f"{study}-{next(self._numbers)}", study, arguments, created, result)
        self._kept[found.id] = found
        size = sum(kept.result.size_bytes for kept in self._kept.values())
        while len(self._kept) > 1 and size > self._most_bytes:
            size -= self._kept.pop(next(iter(self._kept))).result.size_bytes
        return found

    def newest(self, study: str, arguments: Mapping[str, Any]) -> KeptFinding | None:
        wanted = arguments.items()
        return next((one for one in self if one.study == study and wanted <= one.arguments.items()), None)

    def by_id(self, identity: str) -> KeptFinding:
        if identity in self._kept:
            return self._kept[identity]
        raise NotFound(f"no finding '{identity[:64]}': GET /v1/studies lists those that are kept", param="id")

    def file(self, identity: str, name: str) -> bytes:
        files = self.by_id(identity).result.files
        if name in files:
            return files[name]
        known = ", ".join(files) or "none"
        raise NotFound(f"no file '{name[:64]}' of {identity}; it has {known}", param="name")

    def __iter__(self) -> Iterator[KeptFinding]:
        return reversed(self._kept.values())
