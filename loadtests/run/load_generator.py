"""The load generator: `python -m loadtests.run.load_generator` with an `Assignment` on its standard input.

A separate process, because importing locust replaces parts of the standard library, and because its CPU time
is measured. Rows go to `requests.jsonl`, events to standard output.
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import sub
from pathlib import Path
from queue import Empty
from time import (
    perf_counter,
    sleep,  # the patched one
)

import msgspec
import psutil

from loadtests.plan.cells import BASELINE, Cell, order
from loadtests.run.assignment import (
    Assignment,
    GeneratorEvent,
    GeneratorFinished,
    GeneratorStarted,
    MeasuringBegan,
    RoundEnded,
    SloSettled,
    WarmupPassEnded,
)
from loadtests.run.decisions import Latencies, rounds
from loadtests.run.disk import is_full
from loadtests.run.exporter import Exporter
from loadtests.run.finished import Finished, Owed, first_missing
from loadtests.run.locust_users import Answer, LocalUsers  # first: locust patches what the others import
from loadtests.run.machine import Canary, cpu_times, steal_share
from loadtests.run.placement import off_cores
from loadtests.run.requests import LoadRequest
from loadtests.run.rows import RowWriter, each_row
from loadtests.run.run_file import RoundMachine
from loadtests.run.target import Target, compile_counters
from loadtests.run.visits import Abort, Visits
from loadtests.run.worker_pool import WorkerPool
from service.statistics.intervals import mean_interval

# isort: off
# isort: on


def emit(event: GeneratorEvent) -> None:
    """Send `event` to the sweep. BrokenPipeError, once the sweep has ended, ends this process."""
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


class LoadGenerator:
    """Warms the service up, then visits every cell in every round; leaves out what is `finished`."""

    def __init__(
        self,
        assignment: Assignment,
        visits: Visits,
        target: Target,
        finished: Finished,
        cpu_seconds: Callable[[], list[float]],
    ) -> None:
        self._assignment = assignment
        self._plan = assignment.plan
        self._visits = visits
        self._target = target
        self._cpu_seconds = cpu_seconds
        self._finished = finished
        self._owed = Owed(assignment.cut_visits)
        self._warmup = WarmUp(self._plan.warmup_passes_least, self._plan.warmup_passes_most)
        self._canary = Canary(assignment.canary_bytes)
        self._latencies = Latencies()
        self._rates: dict[str, float] = {}

    def run(self) -> GeneratorFinished:
        """Run what the plan still owes. Rows written before an abort are kept."""
        if first_missing(self._plan, self._finished, self._owed) is None:
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
        over = False
        while not over:
            number = -self._warmup.passes
            latencies = dict[str, float]()
            profiled = self._assignment.profile_first and number == 0
            for cell in order(self._plan, number):
                for row in self._visits.warmup(cell, number, profiled):
                    if row["status"] == 200 and not profiled:
                        latencies[cell.name] = row["latency_seconds"]
            over = self._warmup.add(latencies, compile_counters(self._target.metrics()))
            warmup = self._warmup
            emit(WarmupPassEnded(warmup.passes, warmup.settled, over, warmup.reason))

    def _capacity(self, cell: Cell) -> float:
        """Capacity of the cell's mode in requests per second: 1 / its latency at the end of warm-up."""
        same_work = [
            other.name for other in self._plan.cells if (other.mode, other.work) == (cell.mode, cell.work)
        ]
        latency_seconds = self._warmup.latency_seconds(same_work)
        if latency_seconds is None:
            raise Abort(f"no request of '{cell.name}' succeeded during warm-up")
        return 1.0 / latency_seconds

    def _settled_rates(self) -> dict[str, float]:
        """Arrivals per second of each open-loop cell; one that an earlier part had keeps its rate."""
        slo, rates = self._plan.slo, dict(self._assignment.rates)
        opened = [cell for cell in self._plan.cells if cell.open_loop]
        if slo is not None and not slo.is_settled:
            eager = next(cell for cell in opened if cell.mode == BASELINE)
            emit(SloSettled(slo.settled(1.0 / self._capacity(eager))))
        for cell in opened:
            if cell.name not in rates:
                rates[cell.name] = cell.rate or (cell.load or 1.0) * self._capacity(cell)
        return rates

    def _measured_round(self, number: int, cells: list[Cell]) -> None:
        """One round, and what the machine did in it."""
        canary = self._canary.bytes_per_second()
        before = cpu_times()
        began, cpu_began = perf_counter(), self._cpu_seconds()
        for cell in cells:
            self._visit(number, cell)
        machine = RoundMachine(
            round=number,
            steal_share=steal_share(before, cpu_times()),
            canary_bytes_per_second=canary,
            seconds=perf_counter() - began,
            client_cpu_seconds=busiest(
                list(map(sub, self._cpu_seconds(), cpu_began)), len(os.sched_getaffinity(0))
            ),
        )
        emit(RoundEnded(machine))

    def _visit(self, number: int, cell: Cell) -> None:
        self._take_in(number, [cell])
        missing = self._missing(number, cell)
        if not missing:
            return
        for row in self._visits.measured(cell, number, missing, self._rates.get(cell.name)):
            if row["stage"] == "measure" and row["error"] is None and not row.get("profiled"):
                self._latencies.add(cell.name, number, row["latency_seconds"])

    def _missing(self, number: int, cell: Cell) -> list[int]:
        return self._finished.missing(number, cell, self._owed.requests(number, cell))

    def _take_in(self, number: int, cells: list[Cell]) -> None:
        """Have the looks know the rows of an earlier part."""
        for cell in cells:
            self._latencies.add_all(cell.name, number, self._finished.latencies(number, cell))


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
        with RowWriter(folder) as rows:
            visits = Visits(assignment, client, rows, exporter, emit, 1 + finished.last_sequence)
            return LoadGenerator(assignment, visits, target, finished, client.cpu_seconds).run()
    finally:
        client.close()


# isort: off
# isort: on


OPEN_LOOP_USERS = 64
"""More in flight than an open loop below saturation needs; past it, a visit is cut before one has to wait."""


class LocustClient:
    """`users` locust users or more: in this process, or with `workers` above 1 in so many load processes."""

    def __init__(self, url: str, headers: Mapping[str, str], users: int, workers: int = 1) -> None:
        if workers == 1:
            self._users: LocalUsers | WorkerPool = LocalUsers(url, headers, users)
        else:
            self._users = WorkerPool(url, headers, users, workers)
        self._work = self._ended = self._users
        self._asked = users

    @property
    def users(self) -> int:
        """Running users; of several processes not more than were asked for, each of which has as many."""
        return min(self._asked, self._users.users)

    @property
    def lead_seconds(self) -> float:
        """How long before it is due a request leaves this process."""
        return self._users.lead_seconds

    def cpu_seconds(self) -> list[float]:
        """CPU time of this process and of each load process, since they started. Raises Abort without one."""
        try:
            processes = [psutil.Process(), *(psutil.Process(pid) for pid in self._users.process_ids)]
            read = [process.cpu_times() for process in processes]
        except psutil.NoSuchProcess as error:
            raise Abort(f"load process {error.pid} has ended: see load_generator.log") from error
        return [float(times.user + times.system) for times in read]

    def closed(self, requests: Sequence[LoadRequest], concurrency: int) -> Iterator[Answer]:
        """Send `requests`, `concurrency` of them in flight at a time; yields each as it ends."""
        waiting = deque(requests)
        in_flight = 0
        while waiting or in_flight:
            while waiting and in_flight < concurrency:
                self._work.put(waiting.popleft())
                in_flight += 1
            ended = self._ended.get()
            in_flight -= 1
            if waiting:
                # Sent before the caller writes the row of the one that ended.
                self._work.put(waiting.popleft())
                in_flight += 1
                sleep(0)
            yield ended

    def open(self, requests: Sequence[LoadRequest], goes_on: Callable[[int], bool]) -> Iterator[Answer]:
        """Send each of `requests` when it is due, without waiting for responses; yields each as it ends.

        Before each `goes_on` is given the number in flight; false: it and the later ones are not sent.
        """
        in_flight = 0
        for request in requests:
            assert request.intended is not None
            while (wait_seconds := request.intended - self.lead_seconds - perf_counter()) > 0:
                try:
                    ended = self._ended.get(timeout=wait_seconds)
                except Empty:
                    break
                in_flight -= 1
                yield ended
            if not goes_on(self._users.in_flight):
                break
            self._work.put(request)
            in_flight += 1
            sleep(0)  # sent now, also where the next one is late already and nothing is waited for
        for _ in range(in_flight):
            yield self._ended.get()

    def close(self) -> None:
        """Stop locust's users."""
        self._users.close()


SLOPE_TOLERATED = 0.03
"""A mean fall below 3 % from one pass to the next is no slope, even where it is significant."""

SLOPE_CERTAIN = 0.10
"""A mean fall from 10 % on is a slope, however wide its interval: few cells scatter as much by chance."""


class WarmUp:
    """Judges passes over all cells, one request per cell and pass.

    Over after the first pass, from the `least`-th on, during which no compile counter moved and whose
    latencies are not lower than the pass before, by the mean of the per-cell log ratios (this pass over the
    one before) and its t interval: a fall below 3 % is no slope, one from 10 % on is, and one between is
    where the interval excludes 0. A rising latency does not prolong it: more passes would not lower it, and
    the control cell shows the drift. Ends unsettled after `most` passes.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._passes: list[Mapping[str, float]] = []
        self._counters: list[Mapping[str, float]] = []
        self.settled = False
        self.reason = "no pass yet"

    @property
    def passes(self) -> int:
        """Passes so far."""
        return len(self._passes)

    def add(self, latency_seconds: Mapping[str, float], counters: Mapping[str, float]) -> bool:
        """Add a pass: latency by cell that succeeded, compile counters after it. True: warm-up is over."""
        self._passes.append(latency_seconds)
        self._counters.append(counters)
        self.settled, self.reason = self._judge()
        return self.settled or self.passes >= self._most

    def _judge(self) -> tuple[bool, str]:
        if self.passes < max(2, self._least):
            return False, f"pass {self.passes} of at least {max(2, self._least)}"
        before, after = self._counters[-2:]
        if moved := sorted(name for name in after if after[name] != before.get(name, 0.0)):
            return False, f"still compiling: {', '.join(moved)} moved"
        return _has_no_slope(*self._passes[-2:])

    def latency_seconds(self, cells: Sequence[str]) -> float | None:
        """Median over the last two passes and `cells`; None where none of them succeeded."""
        values = sorted(one[cell] for one in self._passes[-2:] for cell in cells if cell in one)
        return values[len(values) // 2] if values else None


def _has_no_slope(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[bool, str]:
    changes = [math.log(after[cell] / before[cell]) for cell in after if cell in before]
    if not changes:
        return False, "no cell answered twice"
    change = mean_interval(changes)
    reason = f"latency {math.expm1(change.value):+.1%} from one pass to the next"
    fall = -math.expm1(change.value)
    sloping = fall >= SLOPE_CERTAIN or (fall > SLOPE_TOLERATED and change.high < 0)
    return not sloping, reason


if __name__ == "__main__":
    raise SystemExit(main())
