"""A study for one HTTP request: it ends where the client closes the connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from starlette.types import Receive

from service.front.api.state import AppState
from service.front.errors import ClientGone
from service.front.schemas.study_answers import StudyProgressEvent
from service.front.study_result import StudyResult

MOST_REPORTS = 100
"""Kept for a client that does not read them; the oldest are given up."""


class StudyCall:
    """Runs the study while the block is open; leaving it, or hanging up, ends what still runs."""

    def __init__(
        self,
        state: AppState,
        receive: Receive,
        name: str,
        arguments: Mapping[str, Any],
        with_files: bool = False,
    ) -> None:
        self._state = state
        self._receive = receive
        self._study = name, arguments
        self._with_files = with_files
        self._reports: deque[StudyProgressEvent] = deque(maxlen=MOST_REPORTS)
        self._reported = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(
            self._state.studies.study(*self._study, self._heard, self._with_files)
        )
        self._gone = asyncio.create_task(_until_disconnect(self._receive))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gone.cancel()
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    @property
    def done(self) -> bool:
        """Whether the study has ended, so that `result` does not wait."""
        return self._running.done()

    async def result(self) -> StudyResult:
        """Wait for the end. Raises what the study raised, and ClientGone."""
        await asyncio.wait({self._running, self._gone}, return_when=asyncio.FIRST_COMPLETED)
        if not self._running.done():
            raise ClientGone("the client closed the connection")
        return self._running.result()

    async def reports(self, seconds: float) -> list[StudyProgressEvent]:
        """What was reported since the last call; waits for a report, the end, or at most `seconds`.

        Raises ClientGone.
        """
        reported = asyncio.create_task(self._reported.wait())
        ends: set[asyncio.Task[Any]] = {self._running, self._gone, reported}
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        reported.cancel()
        if self._gone.done() and not self._running.done():
            raise ClientGone("the client closed the connection")
        self._reported.clear()
        found = list(self._reports)
        self._reports.clear()
        return found

    def _heard(self, text: str, done: int | None = None, total: int | None = None, /) -> None:
        self._reports.append({"message": text, "done": done, "total": total})
        self._reported.set()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
