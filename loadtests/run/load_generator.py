"""The load generator: `python -m loadtests.run.load_generator` with an `Assignment` on its standard input.

A separate process, because importing locust replaces parts of the standard library, and because its CPU time
is measured. Rows go to `requests.jsonl`, events to standard output.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter, time

import msgspec
import psutil

# isort: off
from loadtests.run.locust_client import (
    OPEN_LOOP_USERS,
    LocustClient,
)  # first: locust patches what the others import
# isort: on

from loadtests.plan.arrivals import poisson
from loadtests.plan.cells import Cell, order
from loadtests.plan.prompts import read_prompts
from loadtests.run.assignment import (
    Assignment,
    GeneratorEvent,
    GeneratorFinished,
    GeneratorStarted,
    RequestEnded,
    RoundEnded,
    WarmupPassEnded,
)
from loadtests.run.decisions import Latencies, rounds
from loadtests.run.exporter import Exporter
from loadtests.run.machine import Canary, cpu_times, steal_share
from loadtests.run.placement import off_cores
from loadtests.run.requests import LoadRequest, LoadResponse, body, row
from loadtests.run.rows import RowWriter, Stage
from loadtests.run.run_file import RoundMachine
from loadtests.run.target import Target, compile_counters
from loadtests.run.warmup import WarmUp

FAILURES_IN_A_ROW = 10
"""This many consecutive failures end the sweep: the service is assumed to be down."""


class Abort(Exception):
    """The sweep cannot continue; the message is the reason."""


def emit(event: GeneratorEvent) -> None:
    """Send `event` to the sweep. BrokenPipeError, once the sweep has ended, ends this process."""
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


class LoadGenerator:
    """Warms the service up, then visits every cell in every round."""

    def __init__(
        self,
        assignment: Assignment,
        client: LocustClient,
        target: Target,
        rows: RowWriter,
        exporter: Exporter,
    ) -> None:
        self._assignment = assignment
        self._plan = assignment.plan
        self._client = client
        self._target = target
        self._rows = rows
        self._exporter = exporter
        self._texts = read_prompts(assignment.prompt_file)
        self._warmup = WarmUp(self._plan.warmup_passes_least, self._plan.warmup_passes_most)
        self._canary = Canary(assignment.canary_bytes)
        self._latencies = Latencies()
        self._clock_offset = time() - perf_counter()
        self._sequence = 0
        self._failures = 0
        self._order: list[list[str]] = []
        self._rates: dict[str, float] = {}

    def run(self) -> GeneratorFinished:
        """Run the whole plan. Rows written before an abort are kept."""
        aborted = None
        cpu_share = None
        try:
            self._warm_up()
            began = perf_counter()
            cpu_began = _cpu_seconds()
            for number, cells in rounds(self._plan, self._latencies, emit):
                self._measured_round(number, cells)
            cpu_share = (_cpu_seconds() - cpu_began) / (perf_counter() - began)
        except Abort as error:
            aborted = str(error)
        warmup = self._warmup
        return GeneratorFinished(
            order=self._order,
            rates=self._rates,
            cpu_share=cpu_share,
            warmup_passes=warmup.passes,
            warmup_settled=warmup.settled,
            warmup_reason=warmup.reason,
            aborted=aborted,
        )

    def _warm_up(self) -> None:
        over = False
        while not over:
            number = -self._warmup.passes
            latencies = dict[str, float]()
            profiled = self._profiled(number)
            for cell in order(self._plan, number):
                request = self._request(cell, number, 0, "warmup")
                for _, response in self._take(self._client.closed([request], 1)):
                    if response.status == 200 and not profiled:
                        latencies[cell.name] = response.latency_seconds
            over = self._warmup.add(latencies, compile_counters(self._target.metrics()))
            warmup = self._warmup
            emit(WarmupPassEnded(warmup.passes, warmup.settled, over, warmup.reason))
        for cell in self._plan.cells:
            if cell.load is not None:
                self._rates[cell.name] = cell.load * self._capacity(cell)

    def _capacity(self, cell: Cell) -> float:
        """Capacity of the cell's mode in requests per second: 1 / its latency at the end of warm-up."""
        same_work = [
            other.name
            for other in self._plan.cells
            if (other.mode, other.batch_size, other.prompt_set, other.new_tokens)
            == (cell.mode, cell.batch_size, cell.prompt_set, cell.new_tokens)
        ]
        latency_seconds = self._warmup.latency_seconds(same_work)
        if latency_seconds is None:
            raise Abort(f"no request of '{cell.name}' succeeded during warm-up")
        return 1.0 / latency_seconds

    def _measured_round(self, number: int, cells: list[Cell]) -> None:
        """One round, and what the machine did in it."""
        canary = self._canary.bytes_per_second()
        before = cpu_times()
        self._round(number, cells)
        stolen = steal_share(before, cpu_times())
        emit(RoundEnded(RoundMachine(round=number, steal_share=stolen, canary_bytes_per_second=canary)))

    def _round(self, number: int, cells: list[Cell]) -> None:
        self._order.append([])
        for cell in cells:
            self._order[-1].append(cell.name)
            requests = [self._request(cell, number, index, "measure") for index in range(cell.requests)]
            if cell.load is None:
                visit = self._client.closed(requests, cell.concurrency)
            else:
                visit = self._client.open(self._schedule(cell, number, requests))
            for _ in self._take(visit):
                continue

    def _schedule(self, cell: Cell, number: int, requests: list[LoadRequest]) -> list[LoadRequest]:
        seed = f"{self._plan.seed}/{number}/{cell.name}"
        due = poisson(self._rates[cell.name], len(requests), seed)
        now = perf_counter()
        return [replace(r, intended=now + offset) for r, offset in zip(requests, due, strict=True)]

    def _profiled(self, number: int) -> bool:
        # Round 0 is the first pass of warming up.
        return self._assignment.profile_first and number == 0

    def _request(self, cell: Cell, number: int, index: int, stage: Stage) -> LoadRequest:
        content = body(self._plan, self._texts, cell, number, index, self._profiled(number))
        return LoadRequest(cell, number, index, stage, uuid.uuid4().hex, content)

    def _take(
        self, visit: Iterator[tuple[LoadRequest, LoadResponse]]
    ) -> Iterator[tuple[LoadRequest, LoadResponse]]:
        """Write a row and emit an event as each request ends. Raises Abort after too many failures."""
        for request, response in visit:
            written = row(self._assignment.run, self._sequence, request, response, self._clock_offset)
            self._rows.write(written)
            self._sequence += 1
            error = written["error"]
            cell = request.cell
            latency = response.latency_seconds
            self._exporter.observe(cell.mode, cell.batch_size, latency, failed=error is not None)
            emit(RequestEnded(request.stage, request.round, cell.name, latency, error))
            if request.stage == "measure" and not error and not written.get("profiled"):
                self._latencies.add(cell.name, request.round, latency)
            self._failures = self._failures + 1 if error else 0
            if self._failures >= FAILURES_IN_A_ROW:
                raise Abort(f"{self._failures} requests in a row failed, the last with: {error}")
            yield request, response


def _cpu_seconds() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def main() -> int:
    """Run one assignment; returns 0, or 1 where it was aborted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep handles Ctrl-C and ends this process
    assignment = msgspec.json.decode(sys.stdin.buffer.read(), type=Assignment)
    with off_cores(assignment.avoid_cpus) as cpus:
        finished = _run(assignment, cpus)
    emit(finished)
    return 1 if finished.aborted else 0


def _run(assignment: Assignment, cpus: list[int]) -> GeneratorFinished:
    cells = assignment.plan.cells
    users = max([cell.concurrency for cell in cells] + [OPEN_LOOP_USERS for cell in cells if cell.load])
    target = Target(assignment.url, os.environ.get("LAUNCHBOUND_API_KEY"))
    exporter = Exporter({"run": assignment.run, "preset": assignment.plan.preset})
    note = exporter.serve(assignment.exporter_port)
    client = LocustClient(assignment.url, {**target.headers, "X-Launchbound-Run": assignment.run}, users)
    exporter.users.set_function(lambda: client.users)
    emit(GeneratorStarted(cpus, note))
    try:
        with RowWriter(Path(assignment.folder)) as rows:
            return LoadGenerator(assignment, client, target, rows, exporter).run()
    finally:
        client.close()


if __name__ == "__main__":
    raise SystemExit(main())
