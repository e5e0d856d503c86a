"""The visits of a cell: sends their requests, and writes a row and emits an event as each ends."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter, time
from typing import Any, Protocol

from loadtests.plan.arrivals import poisson
from loadtests.plan.cells import Cell
from loadtests.plan.prompts import read_prompts
from loadtests.run.assignment import Assignment, RequestEnded
from loadtests.run.exporter import Exporter
from loadtests.run.requests import LoadRequest, LoadResponse, body, row
from loadtests.run.rows import RowWriter, Stage

FAILURES_IN_A_ROW = 10
"""This many consecutive failures end the sweep: the service is assumed to be down."""

Ended = Iterator[tuple[LoadRequest, LoadResponse]]
Rows = Iterator[dict[str, Any]]


class Abort(Exception):
    """The sweep cannot continue; the message is the reason."""


class Client(Protocol):
    """What sends the requests of a visit: locust's client, whose import patches the standard library.

    `lead_seconds`: how long before it is due it has to be given a request.
    """

    @property
    def lead_seconds(self) -> float:
        """In seconds, 0 or above."""

    def closed(self, requests: Sequence[LoadRequest], concurrency: int) -> Ended:
        """Keep `concurrency` of `requests` in flight."""

    def open(self, requests: Sequence[LoadRequest]) -> Ended:
        """Send each of `requests` when it is due."""


class Visits:
    """Sends visits for one assignment; rows are numbered from `first_sequence` on."""

    def __init__(
        self,
        assignment: Assignment,
        client: Client,
        rows: RowWriter,
        exporter: Exporter,
        emit: Callable[[RequestEnded], None],
        first_sequence: int,
    ) -> None:
        self._assignment = assignment
        self._client = client
        self._rows = rows
        self._exporter = exporter
        self._emit = emit
        self._sequence = first_sequence
        self._texts = read_prompts(assignment.prompt_file)
        self._clock_offset = time() - perf_counter()
        self._failures = 0

    def warmup(self, cell: Cell, number: int, profiled: bool) -> Rows:
        """The row of one request of warm-up pass `number`; `profiled`: under the service's profiler."""
        return self._take(self._client.closed([self._request(cell, number, 0, "warmup", profiled)], 1))

    def measured(self, cell: Cell, number: int, indexes: Sequence[int], rate: float | None) -> Rows:
        """The rows of the requests `indexes` of round `number`, each once it has ended.

        `rate` is that of an open-loop cell, in arrivals per second. Raises Abort after too many failures, and
        OSError where a row cannot be written.
        """
        requests = [self._request(cell, number, index, "measure") for index in indexes]
        if rate is None:
            return self._take(self._client.closed(requests, cell.concurrency))
        return self._take(self._client.open(self._schedule(cell, number, rate, requests)))

    def _schedule(
        self, cell: Cell, number: int, rate: float, requests: list[LoadRequest]
    ) -> list[LoadRequest]:
        """`requests` with their due times: those of the whole visit, from the first of them on."""
        due = poisson(rate, cell.requests, f"{self._assignment.plan.seed}/{number}/{cell.name}")
        start = perf_counter() + self._client.lead_seconds - due[requests[0].index]
        return [replace(request, intended=start + due[request.index]) for request in requests]

    def _request(
        self, cell: Cell, number: int, index: int, stage: Stage, profiled: bool = False
    ) -> LoadRequest:
        content = body(self._assignment.plan, self._texts, cell, number, index, profiled)
        return LoadRequest(cell, number, index, stage, uuid.uuid4().hex, content)

    def _take(self, visit: Ended) -> Rows:
        for request, response in visit:
            assignment, cell = self._assignment, request.cell
            written = row(
                assignment.run, assignment.part, self._sequence, request, response, self._clock_offset
            )
            self._rows.write(written)
            self._sequence += 1
            error = written["error"]
            latency = response.latency_seconds
            self._exporter.observe(cell.mode, cell.batch_size, latency, failed=error is not None)
            self._emit(RequestEnded(request.stage, request.round, cell.name, latency, error))
            self._failures = self._failures + 1 if error else 0
            if self._failures >= FAILURES_IN_A_ROW:
                raise Abort(f"{self._failures} requests in a row failed, the last with: {error}")
            yield written
