"""The visits of a cell: sends their requests, and writes a row and emits an event as each ends."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter, time
from typing import Any, Protocol

from loadtests.plan.cells import Cell, due_times
from loadtests.plan.prompts import read_prompts
from loadtests.run.assignment import Assignment, RequestEnded, VisitCut
from loadtests.run.exporter import Exporter, Outcome
from loadtests.run.growing_queue import GrowingQueue
from loadtests.run.open_loop import CutVisit
from loadtests.run.requests import Examined, LoadRequest, LoadResponse, body, row
from loadtests.run.rows import REJECTED, RowWriter, Stage

FAILURES_IN_A_ROW = 10
"""This many consecutive failures end the sweep: the service is assumed to be down. A request of an open loop
that is refused is none: the service is up, and full."""

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

    @property
    def users(self) -> int:
        """How many requests can be in flight."""

    def closed(self, requests: Sequence[LoadRequest], concurrency: int) -> Ended:
        """Keep `concurrency` of `requests` in flight."""

    def open(self, requests: Sequence[LoadRequest], goes_on: Callable[[int], bool]) -> Ended:
        """Send each of `requests` when it is due, up to the first at which `goes_on` is false.

        It is asked before each, with the number in flight.
        """


class Visits:
    """Sends visits for one assignment; rows are numbered from `first_sequence` on."""

    def __init__(
        self,
        assignment: Assignment,
        client: Client,
        rows: RowWriter,
        exporter: Exporter,
        emit: Callable[[RequestEnded | VisitCut], None],
        first_sequence: int,
    ) -> None:
        self._assignment = assignment
        self._client = client
        self._rows = rows
        self._exporter = exporter
        self._emit = emit
        self._sequence = first_sequence
        self._seed = assignment.plan.seed
        self._texts = read_prompts(assignment.prompt_file)
        self._clock_offset = time() - perf_counter()
        self._failures = 0

    def warmup(self, cell: Cell, number: int, profiled: bool) -> Rows:
        """The row of one request of warm-up pass `number`; `profiled`: under the service's profiler."""
        examined: Examined | None = "profile" if profiled else None
        return self._take(self._client.closed([self._request(cell, number, 0, "warmup", examined)], 1))

    def measured(self, cell: Cell, number: int, indexes: Sequence[int], rate: float | None) -> Rows:
        """The rows of the requests `indexes` of round `number`, each once it has ended.

        `rate` is that of an open-loop cell, in arrivals per second; where its queue only grows, no more is
        sent, and an event says so. In a closed loop the service first samples one more of them. Raises Abort
        after too many failures, and OSError where a row cannot be written.
        """
        requests = [self._request(cell, number, index, "measure") for index in indexes]
        if rate is None:
            if self._assignment.sampled:
                sample = self._request(cell, number, indexes[0], "sample", "sample")
                yield from self._take(self._client.closed([sample], 1))
            yield from self._take(self._client.closed(requests, cell.concurrency))
            return
        due = due_times(cell.arrivals, rate, cell.requests, f"{self._seed}/{number}/{cell.name}")
        yield from self._open(requests, due, lambda cut: self._emit(VisitCut(cut)))

    def _open(
        self, requests: Sequence[LoadRequest], due: Sequence[float], cut: Callable[[CutVisit], None]
    ) -> Rows:
        """Send `requests` at the times `due` of their visit, from the first of them on."""
        at_once = self._assignment.at_once(requests[0].cell.batch_size)
        queue = GrowingQueue(len(requests), self._client.users, at_once)

        def goes_on(in_flight: int) -> bool:
            reason = queue.arrival(in_flight)
            if reason is not None:
                unsent = requests[queue.accepted]
                name = unsent.cell.name
                cut(CutVisit(round=unsent.round, cell=name, sent=unsent.index, reason=reason))
            return reason is None

        start = perf_counter() + self._client.lead_seconds - due[requests[0].index]
        scheduled = [replace(request, intended=start + due[request.index]) for request in requests]
        return self._take(self._client.open(scheduled, goes_on))

    def _request(
        self, cell: Cell, number: int, index: int, stage: Stage, examined: Examined | None = None
    ) -> LoadRequest:
        content = body(self._assignment.plan, self._texts, cell, number, index, examined)
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
            full = response.status == REJECTED and request.intended is not None
            outcome: Outcome = "rejected" if full else "error" if error else "ok"
            self._exporter.observe(cell.mode, cell.batch_size, latency, outcome)
            self._emit(RequestEnded(request.stage, request.round, cell.name, latency, error, full))
            self._failures = self._failures + 1 if error and not full else 0
            if self._failures >= FAILURES_IN_A_ROW:
                raise Abort(f"{self._failures} requests in a row failed, the last with: {error}")
            yield written
