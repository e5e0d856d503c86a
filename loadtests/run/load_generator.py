"""The load generator: `python -m loadtests.run.load_generator` with an `Assignment` on its standard input.

A separate process, because importing locust replaces parts of the standard library, and because its CPU time
is measured. Rows go to `requests.jsonl`, events to standard output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from operator import sub
from pathlib import Path
from time import perf_counter

import msgspec

# isort: off
from loadtests.run.locust_client import (
    OPEN_LOOP_USERS,
    LocustClient,
)  # first: locust patches what the others import
# isort: on

from loadtests.plan.cells import Cell, order
from loadtests.run.events import (
    Assignment,
    GeneratorEvent,
    GeneratorFinished,
    GeneratorStarted,
    MeasuringBegan,
    RoundEnded,
    WarmupPassEnded,
)
from loadtests.run.exporter import Exporter
from loadtests.run.folder import is_full
from loadtests.run.machine import Canary, cpu_times, off_cores, steal_share
from loadtests.run.requests import Abort, Blocks
from loadtests.run.rows import ROWS_FILE, LineWriter, RequestRow, each_row
from loadtests.run.run_file import RoundMachine
from loadtests.run.schedule import Finished, Latencies, Planned, WarmUp, first_missing, rounds
from loadtests.run.target import Target, compile_counters


def emit(event: GeneratorEvent) -> None:
    """Send `event` to the sweep. BrokenPipeError, once the sweep has ended, ends this process."""
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


class LoadGenerator:
    """Warms the service up, then sends the blocks of every round; leaves out what is `finished`."""

    def __init__(
        self,
        assignment: Assignment,
        blocks: Blocks,
        target: Target,
        finished: Finished,
        cpu_seconds: Callable[[], list[float]],
    ) -> None:
        self._assignment, self._plan = assignment, assignment.plan
        self._blocks, self._target, self._cpu_seconds = blocks, target, cpu_seconds
        self._finished = finished
        self._planned = Planned(assignment.cut_visits)
        self._warmup = WarmUp(self._plan.warmup_passes_least, self._plan.warmup_passes_most)
        self._canary = Canary(assignment.canary_bytes)
        self._latencies = Latencies()
        self._rates: dict[str, float] = {}

    def run(self) -> GeneratorFinished:
        """Send the requests of the plan without a row. Rows written before an abort are kept."""
        if first_missing(self._plan, self._finished, self._planned) is None:
            return GeneratorFinished(None)
        aborted, disk_full = None, False
        try:
            self._warm_up()
            self._rates = self._settled_rates()
            emit(MeasuringBegan(self._rates, self._canary.bytes_per_second()))
            for number, cells in rounds(self._plan, self._latencies, emit):
                if any(self._missing(number, cell) for cell in cells):
                    self._measured_round(number, cells)
                else:
                    self._take_in(number, cells)
        except Abort as error:
            aborted = str(error)
        except OSError as error:
            if not is_full(error):
                raise
            aborted, disk_full = f"no row can be written: {error}", True
        return GeneratorFinished(self._canary.bytes_per_second(), aborted, disk_full)

    def _warm_up(self) -> None:
        warmup, over = self._warmup, False
        while not over:
            number = -warmup.passes
            latencies = dict[str, float]()
            for cell in order(self._plan, number):
                for row in self._blocks.warmup(cell, number):
                    if row["status"] == 200:
                        latencies[cell.name] = row["latency_seconds"]
            over = warmup.add(latencies, compile_counters(self._target.metrics()))
            emit(WarmupPassEnded(warmup.passes, warmup.settled, over, warmup.reason))

    def _capacity(self, cell: Cell) -> float:
        """Capacity of the cell's mode in requests per second: 1 / its latency at the end of warm-up."""
        alike = (one for one in self._plan.cells if (one.mode, one.work) == (cell.mode, cell.work))
        latency_seconds = self._warmup.latency_seconds([one.name for one in alike])
        if latency_seconds is None:
            raise Abort(f"no request of '{cell.name}' succeeded during warm-up")
        return 1.0 / latency_seconds

    def _settled_rates(self) -> dict[str, float]:
        """Arrivals per second of each open-loop cell; one that an earlier part had keeps its rate."""
        rates = dict(self._assignment.rates)
        for cell in self._plan.cells:
            if cell.open_loop and cell.name not in rates:
                rates[cell.name] = cell.rate or (cell.load or 1.0) * self._capacity(cell)
        return rates

    def _measured_round(self, number: int, cells: list[Cell]) -> None:
        canary = self._canary.bytes_per_second()
        before = cpu_times()
        began, cpu_began = perf_counter(), self._cpu_seconds()
        for cell in cells:
            self._block(number, cell)
        spent = list(map(sub, self._cpu_seconds(), cpu_began))
        machine = RoundMachine(
            round=number,
            steal_share=steal_share(before, cpu_times()),
            canary_bytes_per_second=canary,
            seconds=perf_counter() - began,
            client_cpu_seconds=busiest(spent, len(os.sched_getaffinity(0))),
        )
        emit(RoundEnded(machine))

    def _block(self, number: int, cell: Cell) -> None:
        self._take_in(number, [cell])
        missing = self._missing(number, cell)
        if not missing:
            return
        for written in self._blocks.measured(cell, number, missing, self._rates.get(cell.name)):
            row = msgspec.convert(written, RequestRow)
            if row.counts:
                self._latencies.add(cell.name, number, [row.compared_seconds])

    def _missing(self, number: int, cell: Cell) -> list[int]:
        return self._finished.missing(number, cell, self._planned.requests(number, cell))

    def _take_in(self, number: int, cells: list[Cell]) -> None:
        """Add the rows of an earlier part to what interim checks judge."""
        for cell in cells:
            self._latencies.add(cell.name, number, self._finished.latencies(number, cell))


def busiest(cpu_seconds: Sequence[float], cores: int) -> float:
    """CPU seconds of the busiest process or, where processes share `cores`, of the average core."""
    return max(*cpu_seconds, sum(cpu_seconds) / cores)


def main() -> int:
    """Run one assignment; returns 0, or 1 where it was aborted."""
    assignment = msgspec.json.decode(sys.stdin.buffer.read(), type=Assignment)
    with off_cores(assignment.avoid_cpus) as cpus:
        finished = _run(assignment, cpus)
    emit(finished)
    return 1 if finished.aborted else 0


def _run(assignment: Assignment, cpus: list[int]) -> GeneratorFinished:
    cells = assignment.plan.cells
    users = max([cell.concurrency for cell in cells] + [OPEN_LOOP_USERS for cell in cells if cell.open_loop])
    target = Target(assignment.url, os.environ.get("LAUNCHBOUND_API_KEY"))
    exporter = Exporter({"run": assignment.run, "preset": assignment.plan.preset})
    note = exporter.serve(assignment.exporter_port)
    headers = {**target.headers, "X-Launchbound-Run": assignment.run}
    client = LocustClient(assignment.url, headers, users, assignment.workers)
    exporter.users.set_function(lambda: client.users)
    emit(GeneratorStarted(cpus, note))
    folder = Path(assignment.folder)
    finished = Finished(each_row(folder) if assignment.part > 1 else ())
    try:
        with LineWriter(folder / ROWS_FILE) as rows:
            blocks = Blocks(assignment, client, rows, exporter, emit, 1 + finished.last_sequence)
            return LoadGenerator(assignment, blocks, target, finished, client.cpu_seconds).run()
    finally:
        client.close()


if __name__ == "__main__":
    raise SystemExit(main())
