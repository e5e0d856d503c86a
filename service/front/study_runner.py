"""Studies, one at a time, in the anatomy process, which works only while the engine is paused."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from time import monotonic
from typing import Any

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

RENEW_SECONDS = 1.0
"""How often the lease is renewed, and the oldest waiting request looked at."""

BUSY_RETRY_SECONDS = 5

RUN_SECONDS = 30.0
"""A sweep is in progress until this long after its last request ended."""


Heard = Callable[[str, int | None, int | None], None]
"""Takes what a study does now, and where it has parts that are alike, how many of how many are finished."""


def unheard(*_: object) -> None:
    """For a study whose progress nobody asked for."""


@dataclass(frozen=True, slots=True)
class StudyResult:
    """A finding as JSON.

    `seconds`: the `wait` for the engine, the `start` of the process where there was none, the `study`, and
    for how long of these two it was `suspended` for requests. `files` are what it wrote, by name;
    `files_left_out` those over the bound, with the reason.
    """

    body: bytes
    seconds: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    files_left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return len(self.body) + sum(map(len, self.files.values()))


class StudyRunner:
    """Admits studies, pauses the engine for them, and suspends them for requests that waited too long."""

    def __init__(self, client: EngineClient, process: AnatomyProcess, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        # No request waits for a study longer than half its own timeout.
        self._longest_wait = min(settings.anatomy_pause_seconds, settings.request_timeout_seconds / 2)
        self.process = process
        self.sweeps = SweepTracker(client.pause.break_off)
        self._busy = False
        self._idle: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    async def study(
        self, name: str, arguments: Mapping[str, Any], heard: Heard = unheard, with_files: bool = False
    ) -> StudyResult:
        """Run the study `name`. Cancelled, it ends the process at once, as no client waits for its answer.

        `heard` takes its progress, first when it is admitted. `with_files`: it gets a folder for files.
        Raises Draining, ModeNotReady, RunInProgress or AnatomyBusy before the engine is paused;
        StudyInterrupted, EngineLost or DeadlinePassed; or the error that refused the study.
        """
        self._admit()
        self._busy = True
        if self._idle is not None:
            self._idle.cancel()
        try:
            async with folder_for_files(with_files) as folder:
                out = {} if folder is None else {"out": str(folder)}
                return await self._run(name, msgspec.json.encode({**arguments, **out}), heard, folder)
        finally:
            self._client.pause.end()
            self._busy = False
            idle_seconds = self._settings.anatomy_idle_seconds
            self._idle = asyncio.get_running_loop().call_later(idle_seconds, self._end_idle)

    async def stop(self) -> None:
        """End the process, letting it shut down."""
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
                retry_after_seconds=BUSY_RETRY_SECONDS,
            )

    async def _run(self, name: str, arguments: bytes, heard: Heard, folder: Path | None) -> StudyResult:
        """Run a study that has been admitted; `folder` is where its files go, None where it writes none."""
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
        working = asyncio.create_task(self._work(name, arguments, heard, seconds))
        try:
            seconds["suspended"] = await self._attend(working, heard)
            files = ({}, {}) if folder is None else await asyncio.to_thread(read_files, folder)
            return StudyResult(working.result(), seconds, *files)
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

    async def _attend(self, work: asyncio.Task[bytes], heard: Heard) -> float:
        """Keep the engine paused until `work` is done; returns the seconds for which `work` was suspended."""
        pause = self._client.pause
        suspended = 0.0
        limit = self._settings.hang_seconds
        ends = monotonic() + limit
        while True:
            assert pause.lost is not None
            ends_it: set[asyncio.Future[Any]] = {work, pause.lost}
            await asyncio.wait(ends_it, timeout=RENEW_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if pause.lost.done():
                raise pause.lost.result()
            if work.done():
                if pause.overdue:
                    message = "the engine's pause ran out, so the study may have been disturbed; try again"
                    raise StudyInterrupted(message)
                return suspended
            if monotonic() - suspended > ends:
                raise DeadlinePassed(
                    f"the study took more than {limit:g} s and was given up: ask for fewer"
                    " rounds, sizes, modes or batches, or set LAUNCHBOUND_HANG_SECONDS higher"
                )
            if self._client.longest_wait_seconds() > self._longest_wait:
                heard("suspended, while the engine serves requests that have waited", None, None)
                suspended += await self._suspend_for_requests()
                heard("going on", None, None)
            pause.renew()

    async def _suspend_for_requests(self) -> float:
        """Suspend the process while the engine serves what has waited; returns the seconds that took."""
        began = monotonic()
        self.process.suspend()
        self._client.pause.end()
        await self._client.pause.begin()
        self.process.resume()
        return monotonic() - began

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
        """Seconds until the sweep counts as over if no further request arrives; 0 without a sweep."""
        if self._requests:
            return RUN_SECONDS
        return 0.0 if self._last is None else max(0.0, self._last + RUN_SECONDS - monotonic())


def _run_in_progress(state: str, what: str, seconds_left: float) -> RunInProgress:
    message = f"a sweep {state}, which {what} would disturb: wait until it has ended"
    return RunInProgress(message, retry_after_seconds=math.ceil(seconds_left))


ANATOMY_COMMAND = module_command("service.anatomy.process")
NAME = "the anatomy process"

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
        """Start the process unless it runs; returns once its model is loaded.

        A process that has just died counts as none. Raises StudyInterrupted where it ends before that.
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
        self._signal(signal.SIGCONT)
        self._announce(STUDYING)

    def _announce(self, doing: Doing | None) -> None:
        """What the process is expected to do from now on; None: it is stopped on purpose."""
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
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


FOLDER_PREFIX = "launchbound-study-"
"""Of the names of private folders for what studies write."""

MOST_FILE_BYTES = 64 * 2**20
"""Of one file: a trace of two steps has some 100 KB, a snapshot some KB per allocation."""


@asynccontextmanager
async def folder_for_files(wanted: bool) -> AsyncIterator[Path | None]:
    """A private folder that is removed afterwards; None where no files are wanted."""
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder:
        held = os.open(folder, os.O_RDONLY)
        flock(held, LOCK_EX)
        try:
            yield Path(folder)
        finally:
            os.close(held)


def remove_abandoned_folders() -> None:
    """Remove the folders of fronts that were killed during a study: nobody holds their locks any more.

    A lock, not a pid in the name: containers that share the folder for temporary files do not share pids.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):  # it is another user's, in use, or gone already
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                flock(held, LOCK_EX | LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(held)


def read_files(folder: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    """The files in `folder` by name, and those over MOST_FILE_BYTES, each with what to do."""
    files: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        size = path.stat().st_size
        if size <= MOST_FILE_BYTES:
            files[path.name] = path.read_bytes()
        else:
            left_out[path.name] = (
                f"{path.name} has {size} bytes, over the bound of {MOST_FILE_BYTES}, and was not kept: "
                "name one mode, or run `launchbound anatomy` with --out"
            )
    return files, left_out


MOST_FINDINGS = 200

MOST_BYTES = 128 * 2**20
"""Of all findings with their files: an answer of the largest kind has a hundred KB, a trace some more."""


@dataclass(frozen=True, slots=True)
class KeptFinding:
    """A finding under the name `id`; `arguments` are those that it was run with, `created` is in UTC."""

    id: str
    study: str
    arguments: dict[str, Any]
    created: str
    result: StudyResult


class Findings:
    """At most `most` findings of `most_bytes` together; the oldest are dropped, never the newest one."""

    def __init__(self, most: int = MOST_FINDINGS, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: dict[str, KeptFinding] = {}
        self._made = 0
        self.given_up = 0

    def keep(self, study: str, arguments: dict[str, Any], result: StudyResult) -> KeptFinding:
        self._made += 1
        created = datetime.now(UTC).isoformat(timespec="seconds")
        found = KeptFinding(f"{study}-{self._made}", study, arguments, created, result)
        self._kept[found.id] = found
        size = sum(kept.result.size_bytes for kept in self._kept.values())
        while len(self._kept) > 1 and (len(self._kept) > self._most or size > self._most_bytes):
            size -= self._kept.pop(next(iter(self._kept))).result.size_bytes
            self.given_up += 1
        return found

    def newest(self, study: str, arguments: Mapping[str, Any]) -> KeptFinding | None:
        """The newest finding of `study` that was run with all of `arguments`."""
        wanted = arguments.items()
        return next((one for one in self if one.study == study and wanted <= one.arguments.items()), None)

    def by_id(self, identity: str) -> KeptFinding:
        """The finding of this id. Raises NotFound, which says whether it was dropped."""
        if identity in self._kept:
            return self._kept[identity]
        number = re.fullmatch(r"[a-z-]+-(\d{1,9})", identity)
        if number and 0 < int(number[1]) <= self._made:
            message = f"the finding '{identity[:64]}' was given up for newer ones: run the study again"
            raise NotFound(message, type="given_up", param="id")
        raise NotFound(f"no finding '{identity[:64]}': GET /v1/studies lists those that are kept", param="id")

    def file(self, identity: str, name: str) -> bytes:
        """A file of a finding. Raises NotFound, with the finding's files or why this one was not kept."""
        result = self.by_id(identity).result
        if name in result.files:
            return result.files[name]
        if name in result.files_left_out:
            raise NotFound(result.files_left_out[name], type="file_left_out", param="name")
        known = ", ".join(result.files) or "none"
        raise NotFound(f"no file '{name[:64]}' of {identity}; it has {known}", param="name")

    def __iter__(self) -> Iterator[KeptFinding]:
        return reversed(self._kept.values())
