"""Runs studies one at a time in the anatomy process, which works only while the engine is paused."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from service.front.anatomy_process import AnatomyProcess
from service.front.engine_client import EngineClient
from service.front.errors import (
    AnatomyBusy,
    DeadlinePassed,
    Draining,
    ModeNotReady,
    RunInProgress,
    StudyInterrupted,
)
from service.front.study_result import Heard, StudyResult, folder_for_files, read_files, unheard
from service.front.sweep_tracker import RUN_SECONDS, SweepTracker

log = logging.getLogger("launchbound.anatomy")

RENEW_SECONDS = 1.0
"""How often the lease is renewed, and the oldest waiting request looked at."""

BUSY_RETRY_SECONDS = 5


@dataclass(frozen=True, slots=True)
class StudyLimits:
    """In seconds: requests wait for a study no longer than `pause`, a study for the engine than `wait`.

    A study that takes longer than `study` is given up; the process is ended after `idle` without a study.
    """

    pause: float
    wait: float
    study: float
    idle: float


@dataclass(frozen=True, slots=True)
class _Work:
    """A study that has been admitted; `folder` is where its files go, None where it writes none."""

    name: str
    arguments: Mapping[str, Any]
    heard: Heard
    folder: Path | None

    def encoded(self) -> bytes:
        """Its arguments as the study takes them."""
        out = {} if self.folder is None else {"out": str(self.folder)}
        return msgspec.json.encode({**self.arguments, **out})


class StudyRunner:
    """Admits studies, pauses the engine for them, and suspends them for requests that waited too long."""

    def __init__(self, client: EngineClient, process: AnatomyProcess, limits: StudyLimits) -> None:
        self._client = client
        self._limits = limits
        self.process = process
        self.sweeps = SweepTracker(lambda: client.pause.break_off(_run_in_progress("began")))
        self._busy = False
        self._idle: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    async def study(
        self, name: str, arguments: Mapping[str, Any], heard: Heard = unheard, with_files: bool = False
    ) -> StudyResult:
        """Run the study `name`. Cancelled, it ends the process at once: no client waits for its answer.

        `heard` takes its progress, first when it is admitted. `with_files`: it is given a folder for files.
        Raises Draining, ModeNotReady, RunInProgress or AnatomyBusy before the engine is paused;
        StudyInterrupted, EngineLost or DeadlinePassed; or the error that refused the study.
        """
        self._admit()
        self._busy = True
        if self._idle is not None:
            self._idle.cancel()
        try:
            async with folder_for_files(with_files) as folder:
                return await self._run(_Work(name, arguments, heard, folder))
        finally:
            self._client.pause.end()
            self._busy = False
            self._idle = asyncio.get_running_loop().call_later(self._limits.idle, self._end_idle)

    async def stop(self) -> None:
        """End the process, letting it shut down."""
        if self._idle is not None:
            self._idle.cancel()
        await self.process.end(in_order=True)

    def _admit(self) -> None:
        if self._client.admission.draining:
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
        if left := self.sweeps.seconds_left():
            raise _run_in_progress("is in progress", left)
        if self._busy:
            raise AnatomyBusy(
                f"another study is under way ({self.process.doing}); they run one at a time",
                retry_after_seconds=BUSY_RETRY_SECONDS,
            )

    async def _run(self, work: _Work) -> StudyResult:
        began = monotonic()
        work.heard("waiting for the engine to pause")
        try:
            async with asyncio.timeout(self._limits.wait):
                await self._client.pause.begin()
        except TimeoutError:
            message = f"the engine had work for more than {self._limits.wait:g} s; try again with less load"
            raise DeadlinePassed(message) from None
        seconds = {"wait": monotonic() - began}
        working = asyncio.create_task(self._work(work, seconds))
        try:
            seconds["suspended"] = await self._attend(working, work.heard)
            return StudyResult(working.result(), seconds, *await read_files(work.folder))
        finally:
            if not working.done():
                working.cancel()
                await self.process.end(in_order=False)
            await asyncio.gather(working, return_exceptions=True)

    async def _work(self, work: _Work, seconds: dict[str, float]) -> bytes:
        began = monotonic()
        if self.process.doing is None:
            work.heard("starting the process that studies run in")
        await self.process.start()
        seconds["start"] = monotonic() - began
        body = await self.process.run(work.name, work.encoded(), work.heard)
        seconds["study"] = monotonic() - began - seconds["start"]
        return body

    async def _attend(self, work: asyncio.Task[bytes], heard: Heard) -> float:
        """Keep the engine paused until `work` is done; returns the seconds for which `work` was suspended."""
        pause = self._client.pause
        suspended = 0.0
        ends = monotonic() + self._limits.study
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
                    f"the study took more than {self._limits.study:g} s and was given up: ask for fewer"
                    " rounds, sizes, modes or batches, or set LAUNCHBOUND_HANG_SECONDS higher"
                )
            if self._client.longest_wait_seconds() > self._limits.pause:
                heard("suspended, while the engine serves requests that have waited")
                suspended += await self._suspend_for_requests()
                heard("going on")
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
        log.info("no study for %g s: the anatomy process ends", self._limits.idle)
        self._ending = asyncio.create_task(self.process.end(in_order=True))


def _run_in_progress(state: str, seconds_left: float = RUN_SECONDS) -> RunInProgress:
    return RunInProgress(
        f"a sweep {state}, which a study would disturb: wait until it has ended",
        retry_after_seconds=math.ceil(seconds_left),
    )
