"""When warm-up has settled, which rounds follow, what a block sends, and what cuts one that only grows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from statistics import median

import pytest

from loadtests.plan.cells import Cell, Plan, due_times
from loadtests.run.events import (
    EVENTS_FILE,
    Assignment,
    BlockCut,
    GeneratorEvent,
    InterimCheckEnded,
    KeptEvent,
    PartEvent,
    WarmupPassEnded,
)
from loadtests.run.exporter import Exporter
from loadtests.run.requests import (
    FAILURES_IN_A_ROW,
    Abort,
    Blocks,
    Ended,
    GrowingQueue,
    LoadRequest,
    LoadResponse,
)
from loadtests.run.resumption import recover
from loadtests.run.rows import ROWS_FILE, LineWriter, each_row
from loadtests.run.run_file import Part, read_run
from loadtests.run.schedule import Finished, Latencies, WarmUp, rounds
from tests.support.fake_service import timings
from tests.support.made_plans import make_plan, read_rows
from tests.support.made_results import make_results


def passes(*factors: float, counters: tuple[float, ...] = ()) -> WarmUp:
    """A warm-up with one pass per factor, over four cells."""
    warmup = WarmUp(2, 6)
    for number, factor in enumerate(factors):
        latencies = {
            f"cell {n}": factor * (0.1 + 0.01 * n) * (1 + 0.002 * (-1) ** (n + number)) for n in range(4)
        }
        count = counters[number] if counters else 0.0
        warmup.add(latencies, {"launchbound_recompiles_total": count})
    return warmup


def test_warming_up_takes_two_passes_and_goes_on_while_latency_falls_or_something_compiles() -> None:
    assert not passes(1.0).settled
    assert passes(1.0, 1.0).settled
    assert not passes(2.0, 1.0).settled
    assert passes(2.0, 1.0, 1.0).settled
    assert passes(1.0, 1.3).settled
    assert not passes(1.0, 1.0, counters=(0, 1)).settled
    assert passes(1.0, 1.0, 1.0, counters=(0, 1, 1)).settled


def test_warming_up_is_given_up_after_its_last_pass() -> None:
    warmup = WarmUp(2, 3)
    over = [warmup.add({"a": 4.0**-n, "b": 3.9**-n}, {}) for n in range(3)]
    assert over == [False, False, True]
    assert not warmup.settled


CLEAR = {"eager": 2.2, "no_grad": 1.7, "inference_mode": 1.5, "compiled": 1.0, "reduce-overhead": 0.8}
CLOSE = CLEAR | {"compiled": 0.82}


def run(
    plan: Plan, true: Mapping[int, Mapping[str, float]], scatter: float = 0.01, seed: int = 1
) -> tuple[list[list[str]], list[InterimCheckEnded]]:
    """The cells by round and the interim checks, where a mode takes the `true` time of its batch size."""
    random = Random(seed)
    latencies, checks, measured = Latencies(), list[InterimCheckEnded](), list[list[str]]()
    for number, cells in rounds(plan, latencies, checks.append):
        measured.append([cell.name for cell in cells])
        drift = 0.3 * math.sin(number)
        for cell in cells:
            base = true[cell.batch_size][cell.mode]
            times = [base * math.exp(drift + random.gauss(0, scatter)) for _ in range(cell.requests)]
            latencies.add(cell.name, number, times)
    return measured, checks


def test_only_the_undecided_batch_goes_on_with_all_its_cells() -> None:
    plan = make_plan("quick")
    measured, checks = run(plan, {1: CLEAR, 4: CLEAR | {"compiled": 0.8}, 16: CLEAR}, scatter=0.06)
    mine = sorted(cell.name for cell in plan.cells if cell.batch_size == 4)
    assert checks[0].look.undecided == ["b=4 short n=32 c=1"]
    assert checks[0].requests == 4 * 2 * 6
    assert len(measured) > 8
    assert all(sorted(names) == mine for names in measured[8:])


def test_a_group_that_stays_undecided_ends_at_the_cap_and_is_named() -> None:
    measured, checks = run(make_plan("quick"), {1: CLOSE, 4: CLEAR, 16: CLEAR}, scatter=0.3)
    assert len(measured) == 16
    assert "b=1 short n=32 c=1" in checks[-1].look.undecided
    assert checks[-1].requests == 0


def test_open_loops_and_other_conditions_do_not_ask_for_more_rounds() -> None:
    plan = make_plan("full")
    measured, _ = run(plan, dict.fromkeys(plan.batch_sizes, CLEAR))
    assert len(measured) == plan.rounds
    assert set(measured[0]) == {cell.name for cell in plan.cells}
    opened = (Cell(mode="eager", batch_size=1, load=0.5),)
    measured, checks = run(Plan(preset="own", seed=1, rounds=3, rounds_most=9, cells=opened), {1: CLEAR})
    assert (len(measured), checks[-1].look.undecided) == (3, [])


def write_events(folder: Path, part: int, *events: KeptEvent) -> None:
    with LineWriter(folder / EVENTS_FILE) as kept:
        for event in events:
            kept.write(PartEvent(part, event))


def test_a_part_that_was_killed_in_its_warm_up_does_not_unsettle_the_others(tmp_path: Path) -> None:
    plan = make_plan("quick", 1, ["eager", "compiled"], [1])
    run = read_run(make_results(tmp_path, plan=plan))
    run.ended, run.parts = None, [Part(number=number, started="") for number in (1, 2, 3)]
    for number, settled in ((1, True), (2, False), (3, True)):
        write_events(tmp_path, number, WarmupPassEnded(number, settled, settled, f"part {number}"))
    path = tmp_path / ROWS_FILE
    text = path.read_text().splitlines()
    path.write_text("\n".join(text[:-3] + [line.replace("{", '{"part":3,', 1) for line in text[-3:]]) + "\n")
    recover(tmp_path, run, Finished(each_row(tmp_path)))
    assert (run.client.warmup_passes, run.client.warmup_settled) == (3, True)
    assert len(run.order) == 8


# ---------------------------------------------------------------- blocks

CAPACITY = 10.0


@dataclass
class SimulatedService:
    """A client of a service that takes 1 / CAPACITY seconds per request, on a clock of its own."""

    status: int = 200
    users: int = 64
    early_seconds: float = 0.0
    sent: list[LoadRequest] = field(default_factory=list)

    def closed(self, requests: Sequence[LoadRequest], concurrency: int) -> Ended:
        assert concurrency == 1
        for request in requests:
            self.sent.append(request)
            yield request, self._response(0.0, 1 / CAPACITY)

    def open(self, requests: Sequence[LoadRequest], goes_on: Callable[[int], bool]) -> Ended:
        ends = list[float]()
        for request in requests:
            if not goes_on(sum(end > request.intended for end in ends)):
                break
            self.sent.append(request)
            ends.append(max(request.intended, ends[-1] if ends else 0.0) + 1 / CAPACITY)
        for request, end in zip(self.sent[-len(ends) :], ends, strict=True):
            yield request, self._response(request.intended, end - request.intended)

    def _response(self, started: float, seconds: float) -> LoadResponse:
        body = {"timings": timings("eager", 1, 32)} if self.status == 200 else {}
        failure = None if self.status == 200 else "refused"
        return LoadResponse(started, seconds, self.status, json.dumps(body), failure)


@dataclass
class Bench:
    """Blocks of `cells` by a simulated service, with what they emit."""

    blocks: Blocks
    service: SimulatedService
    events: list[GeneratorEvent]

    @property
    def cuts(self) -> list[BlockCut]:
        return [event for event in self.events if isinstance(event, BlockCut)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    with LineWriter(tmp_path / ROWS_FILE) as rows:

        def make(*cells: Cell, sampled: bool = False, **service: int) -> Bench:
            plan = Plan(preset="own", seed=3, rounds=8, cells=cells)
            assignment = Assignment(run="a run", url="", folder=str(tmp_path), plan=plan, sampled=sampled)
            simulated, events = SimulatedService(**service), list[GeneratorEvent]()
            exporter = Exporter({"run": "a run", "preset": "own"})
            blocks = Blocks(assignment, simulated, rows, exporter, events.append, 0)
            return Bench(blocks, simulated, events)

        yield make


def opened(load: float, requests: int = 100, **other: str) -> Cell:
    return Cell(mode="eager", batch_size=1, load=load, requests=requests, **other)  # type: ignore[arg-type]


def test_a_block_past_saturation_is_cut_and_what_is_in_flight_has_its_rows(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    cell = opened(3.0)
    made = bench(cell)
    rows = list(made.blocks.measured(cell, 4, range(100), 3 * CAPACITY))
    (cut,) = made.cuts
    assert len(rows) == len(read_rows(tmp_path)) == cut.visit.sent < 60
    assert (cut.visit.round, cut.visit.cell) == (4, cell.name)
    assert "only grows" in cut.visit.reason
    assert made.events.index(cut) < made.events.index(next(e for e in made.events if e != cut))


def test_no_request_waits_for_a_user_of_the_load_generator(bench: Callable[..., Bench]) -> None:
    cell = opened(3.0)
    made = bench(cell, users=5)
    rows = list(made.blocks.measured(cell, 1, range(100), 3 * CAPACITY))
    assert "5 requests are in flight, as many as" in made.cuts[0].visit.reason
    assert len(rows) == made.cuts[0].visit.sent < 12


def test_requests_that_a_full_queue_refuses_are_rows_and_do_not_end_the_sweep(
    bench: Callable[..., Bench],
) -> None:
    cell = opened(0.5)
    made = bench(cell, status=429)
    rows = list(made.blocks.measured(cell, 1, range(3 * FAILURES_IN_A_ROW), 1.0))
    assert {row["status"] for row in rows} == {429}
    assert len(rows) == 3 * FAILURES_IN_A_ROW


CLOSED_BLOCK = Cell(mode="eager", batch_size=1, requests=30)


@pytest.mark.parametrize(
    ("cell", "status", "rate"),
    [(CLOSED_BLOCK, 429, None), (CLOSED_BLOCK, 500, None), (opened(0.5), 500, 1.0)],
)
def test_what_fails_ends_a_loop(
    bench: Callable[..., Bench], cell: Cell, status: int, rate: float | None
) -> None:
    with pytest.raises(Abort, match="10 requests in a row failed"):
        list(bench(cell, status=status).blocks.measured(cell, 1, range(30), rate))


def test_before_a_closed_block_one_more_request_is_sampled(bench: Callable[..., Bench]) -> None:
    cell = Cell(mode="eager", batch_size=1, requests=3)
    for indexes in ([2], [0, 1, 2]):
        made = bench(cell, sampled=True)
        rows = made.blocks.measured(cell, 4, indexes, None)
        assert [row["stage"] for row in rows] == ["sample", *["measure"] * len(indexes)]
        bodies = [json.loads(request.body) for request in made.service.sent]
        assert [body.pop("sample", False) for body in bodies] == [True, *[False] * len(indexes)]
        assert bodies[0] == bodies[1]


def test_nothing_is_sampled_where_the_service_cannot_or_in_an_open_loop(bench: Callable[..., Bench]) -> None:
    cell = Cell(mode="eager", batch_size=1, requests=3)
    rows = [*bench(cell).blocks.measured(cell, 4, range(3), None)]
    rows += bench(opened(0.3), sampled=True).blocks.measured(opened(0.3), 4, range(100), 3.0)
    assert {row["stage"] for row in rows} == {"measure"}


def cut_after(
    load: float, requests: int, seed: int, service: Callable[[], float] = lambda: 1.0, at_once: int = 1
) -> int | None:
    """After how many arrivals a block at `load` of the capacity is cut; None where it is not.

    Requests are answered first come, first served, by so many servers `at_once`, each of which takes so many
    times as long as one alone; `service` gives the time of the next.
    """
    queue, ends, free = GrowingQueue(requests, 64, at_once), list[float](), [0.0] * at_once
    for now in due_times("poisson", load, requests, str(seed)):
        ends = [end for end in ends if end > now]
        if queue.arrival(len(ends)):
            return queue.accepted
        ends.append(max(now, heappop(free)) + at_once * service())
        heappush(free, ends[-1])
    return None


def share_cut(load: float, requests: int, blocks: int, at_once: int = 1) -> float:
    found = [cut_after(load, requests, seed, at_once=at_once) for seed in range(blocks)]
    return sum(after is not None for after in found) / blocks


@pytest.mark.parametrize("at_once", [1, 4, 16])
def test_below_saturation_fewer_than_one_block_in_a_hundred_is_cut_and_past_it_most(at_once: int) -> None:
    assert share_cut(0.5, 36, 1000, at_once) < 0.01
    assert share_cut(0.9, 200, 400, at_once) < 0.01
    assert share_cut(2.0, 400, 100, at_once) > 0.9
    if at_once == 1:
        assert median(cut_after(2.0, 1000, seed) or 1000 for seed in range(100)) < 50


def test_a_stall_of_the_service_is_no_queue_that_only_grows() -> None:
    times = iter([40.0, *[0.2] * 500])
    assert cut_after(0.5, 200, 3, service=lambda: next(times)) is None
