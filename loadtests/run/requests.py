"""The requests of a cell in one round: sends them, and writes a row and emits an event as each ends."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter, time
from typing import Any, Literal, Protocol

from loadtests.plan.cells import Cell, Plan, draw, due_times, read_prompts, select
from loadtests.run.events import Assignment, BlockCut, RequestEnded
from loadtests.run.exporter import Exporter, Outcome
from loadtests.run.rows import REJECTED, LineWriter, Stage
from loadtests.run.run_file import CutBlock

Examined = Literal["profile", "sample"]
"""What the service does to a request that makes it slower: runs it under its profiler, samples its steps."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The `index`-th request of a cell in a round.

    `intended` is when it is due, in seconds on the client's monotonic clock; None: at once.
    """

    cell: Cell
    round: int
    index: int
    stage: Stage
    id: str
    body: str
    intended: float | None = None

    @property
    def path(self) -> str:
        return self.cell.workload.route.format(mode=self.cell.mode)


@dataclass(frozen=True, slots=True)
class LoadResponse:
    """The response: `status` 0 and no body where there was none. `started` is on the clock of `intended`.

    `worker` numbers the load process that posted the request; None: the load generator did.
    """

    started: float
    latency_seconds: float
    status: int
    body: str | None
    failure: str | None
    worker: int | None = None


def body(
    plan: Plan, texts: Sequence[str], cell: Cell, number: int, index: int, examined: Examined | None = None
) -> str:
    """The JSON of the `index`-th request of `cell` in round `number`, `examined` by the service or not.

    Prompts depend on seed, round, index, batch and prompt set, not on the mode: within a round all modes get
    the same prompts. So do the seeds of a module's inputs, without the prompt set.
    """
    of = f"{plan.seed}/{number}/{index}/{cell.batch_size}"
    content: dict[str, Any]
    if cell.prompt_set is None:
        content = {**cell.work, "seed": Random(f"inputs/{of}").getrandbits(31)}
    else:
        drawn = draw(select(list(texts), cell.prompt_set), cell.batch_size, f"prompts/{of}/{cell.prompt_set}")
        content = {"prompts": drawn, "max_new_tokens": cell.new_tokens, "ignore_eos": True}
    return json.dumps(content if examined is None else {**content, examined: True})


def row(
    run: str, part: int, sequence: int, request: LoadRequest, response: LoadResponse, clock_offset: float
) -> dict[str, Any]:
    """The row of `requests.jsonl`; `clock_offset` turns the client's clock into Unix seconds."""
    cell = request.cell
    document = _document(response)
    ok = response.status == 200 and response.failure is None and _is_whole(document, cell)
    intended = response.started if request.intended is None else request.intended
    fields: dict[str, Any] = {
        "run": run,
        "cell": cell.name,
        "part": part,
        "sequence": sequence,
        **{name: getattr(request, name) for name in ("round", "index", "stage")},
        **{name: getattr(cell, name) for name in ("control", "mode")},
        **cell.work,
        **{name: getattr(cell, name) for name in ("concurrency", "load", "rate")},
        "effective_mode": document.get("mode", {}).get("effective"),
        "worker": response.worker,
        "request_id": request.id,
        "intended_start": clock_offset + intended,
        "start": clock_offset + response.started,
        "latency_seconds": response.latency_seconds,
        "latency_from_intended_seconds": response.latency_seconds + max(0.0, response.started - intended),
        "status": response.status,
        "error": None if ok else _error(response, document),
    }
    if ok:
        known = {**document, **document.get("usage", {})}
        fields |= {name: known[name] for name in _OF_ANSWER if name in known}
        if cell.calls is None:
            fields["text_digest"] = _text_digest(document)
        fields |= {name: value for name, value in document["timings"].items() if name not in fields}
    return fields


_OF_ANSWER = ("prompt_tokens", "completion_tokens", "batch_bucket", "device")


def _is_whole(document: dict[str, Any], cell: Cell) -> bool:
    """Whether an answer has its timings; of a module, the time of as many calls as were asked for."""
    timings = document.get("timings")
    if cell.calls is None or not isinstance(timings, dict):
        return "timings" in document
    forward = timings.get("forward") or {}
    return forward.get("steps") == cell.calls and forward.get("wall_seconds") is not None


def _text_digest(document: dict[str, Any]) -> str:
    """64 bits of the SHA-256 of the completions' texts, in their order."""
    texts = [output.get("text") for output in document.get("outputs", [])]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _document(response: LoadResponse) -> dict[str, Any]:
    """Its body; empty where that is no JSON object, or has a mode that is none."""
    try:
        document = json.loads(response.body or "{}")
    except ValueError:
        return {}
    is_ours = isinstance(document, dict) and isinstance(document.get("mode", {}), dict)
    return document if is_ours else {}


def _error(response: LoadResponse, document: dict[str, Any]) -> str:
    """The service's error message where it sent one, else the client's own error."""
    error = document.get("error")
    if isinstance(error, dict) and error.get("message"):
        return str(error["message"])
    return (
        response.failure
        or f"status {response.status} with a body that is no result: {(response.body or '')[:200]}"
    )


STABLE = 0.9
"""The share of its capacity up to which a service keeps up; nearer to 1 no block is long enough to tell."""

FALSE_CUTS = 0.003
"""Of blocks at STABLE, by the bound below; simulated, it is up to three times that and below 1 %."""

LEAST_ANSWERS = 8
"""Before so many answers a stall of the service looks like too high a rate of arrivals."""


class GrowingQueue:
    """Judges one block of `requests` arrivals, of which at most `most_in_flight` can be in flight at once.

    The service works on up to k = `at_once` requests together. Within a busy period, one without an arrival
    that found fewer than k in flight, a service that takes the same time for each request answers k in that
    time. So m arrivals, during which c answers came, took less than (c + k) / k service times. Where arrivals
    are Poisson's, the log of the likelihood ratio of their most likely rate to that of a service in use for
    STABLE of its capacity is

        m ln(m / (STABLE (c + k))) - m + STABLE (c + k).

    The queue only grows where that exceeds the logarithm of the number of busy periods that the block can
    have, over FALSE_CUTS: a union bound. Equal gaps, and refusals, only make it more reluctant.
    """

    def __init__(self, requests: int, most_in_flight: int, at_once: int = 1) -> None:
        busy_periods = max(1.0, (1 - STABLE) * requests)
        self._least_evidence = math.log(busy_periods / FALSE_CUTS)
        self._most_in_flight = most_in_flight
        self._at_once = at_once
        self._found_free = 0
        self._busy_arrivals = 0
        self.accepted = 0
        """Arrivals so far, without the one at which sending ends."""

    def arrival(self, in_flight: int) -> str | None:
        """Take in an arrival that finds so many in flight; the reason why neither it nor a later one is sent.

        None: it is sent.
        """
        if in_flight >= self._most_in_flight:
            return f"{in_flight} requests are in flight, as many as the load generator can have"
        if in_flight < self._at_once:
            self._busy_arrivals, self._found_free = 0, in_flight
        else:
            self._busy_arrivals += 1
        answers = self._found_free + self._busy_arrivals - in_flight
        if answers >= LEAST_ANSWERS and self._evidence(answers) > self._least_evidence:
            ratio = self._busy_arrivals / (answers + self._at_once)
            since = "empty" if self._at_once == 1 else "not full"
            return (
                f"the queue only grows: {in_flight} in flight, {self._busy_arrivals} arrivals and {answers} "
                f"answers since it was {since}, at least {ratio:.2f} times as fast as they are answered"
            )
        self.accepted += 1
        return None

    def _evidence(self, answers: int) -> float:
        arrivals, expected = self._busy_arrivals, STABLE * (answers + self._at_once)
        return arrivals * math.log(arrivals / expected) - arrivals + expected if arrivals > expected else 0.0


FAILURES_IN_A_ROW = 10
"""This many consecutive failures end the sweep: the service is assumed to be down. A request of an open loop
that is refused is none: the service is up, and full."""

Ended = Iterator[tuple[LoadRequest, LoadResponse]]
Rows = Iterator[dict[str, Any]]


class Abort(Exception):
    """The sweep cannot continue; the message is the reason."""


class Client(Protocol):
    """What sends the requests of a block: locust's client, whose import patches the standard library."""

    @property
    def early_seconds(self) -> float:
        """How long before it is due the client has to be given a request."""

    @property
    def users(self) -> int:
        """How many requests can be in flight."""

    def closed(self, requests: Sequence[LoadRequest], concurrency: int) -> Ended:
        """Keep `concurrency` of `requests` in flight."""

    def open(self, requests: Sequence[LoadRequest], goes_on: Callable[[int], bool]) -> Ended:
        """Send each of `requests` when it is due, up to the first at which `goes_on` is false.

        It is asked before each, with the number in flight.
        """


class Blocks:
    """Sends blocks for one assignment; rows are numbered from `first_sequence` on.

    A block is the requests of a cell in one round.
    """

    def __init__(
        self,
        assignment: Assignment,
        client: Client,
        rows: LineWriter,
        exporter: Exporter,
        emit: Callable[[RequestEnded | BlockCut], None],
        first_sequence: int,
    ) -> None:
        self._assignment, self._client, self._rows = assignment, client, rows
        self._exporter, self._emit, self._sequence = exporter, emit, first_sequence
        self._texts = read_prompts()
        self._clock_offset = time() - perf_counter()
        self._failures = 0

    def warmup(self, cell: Cell, number: int) -> Rows:
        """The row of one request of warm-up pass `number`."""
        return self._take(self._client.closed([self._request(cell, number, 0, "warmup")], 1))

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
        due = due_times(
            cell.arrivals, rate, cell.requests, f"{self._assignment.plan.seed}/{number}/{cell.name}"
        )
        yield from self._open(requests, due)

    def _open(self, requests: Sequence[LoadRequest], due: Sequence[float]) -> Rows:
        """Send `requests` at the times `due` of their block, from the first of them on."""
        at_once = max(1, self._assignment.rows_at_once // requests[0].cell.batch_size)
        queue = GrowingQueue(len(requests), self._client.users, at_once)

        def goes_on(in_flight: int) -> bool:
            if (reason := queue.arrival(in_flight)) is None:
                return True
            unsent = requests[queue.accepted]
            cut = CutBlock(round=unsent.round, cell=unsent.cell.name, sent=unsent.index, reason=reason)
            self._emit(BlockCut(cut))
            return False

        start = perf_counter() + self._client.early_seconds - due[requests[0].index]
        scheduled = [replace(request, intended=start + due[request.index]) for request in requests]
        return self._take(self._client.open(scheduled, goes_on))

    def _request(
        self, cell: Cell, number: int, index: int, stage: Stage, examined: Examined | None = None
    ) -> LoadRequest:
        content = body(self._assignment.plan, self._texts, cell, number, index, examined)
        return LoadRequest(cell, number, index, stage, uuid.uuid4().hex, content)

    def _take(self, block: Ended) -> Rows:
        for request, response in block:
            run, part, cell = self._assignment.run, self._assignment.part, request.cell
            written = row(run, part, self._sequence, request, response, self._clock_offset)
            self._rows.write(written)
            self._sequence += 1
            error, latency = written["error"], response.latency_seconds
            full = response.status == REJECTED and request.intended is not None
            outcome: Outcome = "rejected" if full else "error" if error else "ok"
            self._exporter.observe(cell.mode, cell.batch_size, latency, outcome)
            self._emit(RequestEnded(request.stage, request.round, cell.name, latency, error, full))
            self._failures = self._failures + 1 if error and not full else 0
            if self._failures >= FAILURES_IN_A_ROW:
                raise Abort(f"{self._failures} requests in a row failed, the last with: {error}")
            yield written
