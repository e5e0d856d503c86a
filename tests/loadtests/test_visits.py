"""Visits of open-loop cells: what is sent and when, what ends them, and the rates that they get."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loadtests.plan.cells import Cell, Plan, Slo
from loadtests.plan.prompts import PROMPT_FILE
from loadtests.run.events import Assignment, BlockCut, GeneratorEvent
from loadtests.run.exporter import Exporter
from loadtests.run.requests import (
    FAILURES_IN_A_ROW,
    Abort,
    Blocks,
    Ended,
    LoadRequest,
    LoadResponse,
    can_sample,
)
from loadtests.run.rows import RowWriter, read_rows
from tests.support.fake_service import timings

SLO = Slo(e2e_seconds=2.0)
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
            yield request, self._response(0.0, 1 / CAPACITY)

    def open(self, requests: Sequence[LoadRequest], goes_on: Callable[[int], bool]) -> Ended:
        ends = list[float]()
        for request in requests:
            assert request.intended is not None
            if not goes_on(sum(end > request.intended for end in ends)):
                break
            self.sent.append(request)
            ends.append(max(request.intended, ends[-1] if ends else 0.0) + 1 / CAPACITY)
        for request, end in zip(self.sent[-len(ends) :], ends, strict=True):
            assert request.intended is not None
            yield request, self._response(request.intended, end - request.intended)

    def _response(self, started: float, seconds: float) -> LoadResponse:
        body = {"timings": timings("eager", 1, 32)} if self.status == 200 else {}
        failure = None if self.status == 200 else "refused"
        return LoadResponse(started, seconds, self.status, json.dumps(body), failure)


@dataclass
class Bench:
    """Visits of `cells` by a simulated service, with what they emit."""

    visits: Blocks
    service: SimulatedService
    assignment: Assignment
    events: list[GeneratorEvent]

    @property
    def cuts(self) -> list[BlockCut]:
        return [event for event in self.events if isinstance(event, BlockCut)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    with RowWriter(tmp_path) as rows:

        def make(*cells: Cell, slo: Slo | None = SLO, sampled: bool = False, **service: int) -> Bench:
            plan = Plan(preset="own", seed=3, rounds=8, cells=cells, slo=slo)
            assignment = Assignment(
                run="a run",
                url="",
                folder=str(tmp_path),
                plan=plan,
                prompt_file=str(PROMPT_FILE),
                sampled=sampled,
            )
            simulated, events = SimulatedService(**service), list[GeneratorEvent]()
            exporter = Exporter({"run": "a run", "preset": "own"})
            visits = Blocks(assignment, simulated, rows, exporter, events.append, 0)
            return Bench(visits, simulated, assignment, events)

        yield make


def opened(load: float, requests: int = 100, **other: str) -> Cell:
    return Cell(mode="eager", batch_size=1, load=load, requests=requests, **other)  # type: ignore[arg-type]


def test_a_visit_past_saturation_is_cut_and_what_is_in_flight_has_its_rows(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    cell = opened(3.0)
    made = bench(cell)
    rows = list(made.visits.measured(cell, 4, range(100), 3 * CAPACITY))
    (cut,) = made.cuts
    assert len(rows) == len(read_rows(tmp_path)) == cut.visit.sent < 60
    assert (cut.visit.round, cut.visit.cell) == (4, cell.name)
    assert "only grows" in cut.visit.reason
    assert made.events.index(cut) < made.events.index(next(e for e in made.events if e != cut))


def test_a_visit_below_saturation_is_sent_to_its_end(bench: Callable[..., Bench]) -> None:
    cell = opened(0.7)
    made = bench(cell)
    assert len(list(made.visits.measured(cell, 1, range(100), 0.7 * CAPACITY))) == 100
    assert made.cuts == []


def test_a_cut_visit_that_goes_on_says_up_to_which_index_it_was_sent(bench: Callable[..., Bench]) -> None:
    cell = opened(3.0)
    made = bench(cell)
    indexes = [*range(3, 100)]
    rows = list(made.visits.measured(cell, 1, indexes, 3 * CAPACITY))
    assert [row["index"] for row in rows] == [*range(3, made.cuts[0].visit.sent)]


def test_no_request_waits_for_a_user_of_the_load_generator(bench: Callable[..., Bench]) -> None:
    cell = opened(3.0)
    made = bench(cell, users=5)
    rows = list(made.visits.measured(cell, 1, range(100), 3 * CAPACITY))
    assert "5 requests are in flight, as many as" in made.cuts[0].visit.reason
    assert len(rows) == made.cuts[0].visit.sent < 12


def test_requests_that_a_full_queue_refuses_are_rows_and_do_not_end_the_sweep(
    bench: Callable[..., Bench],
) -> None:
    cell = opened(0.5)
    made = bench(cell, status=429)
    rows = list(made.visits.measured(cell, 1, range(3 * FAILURES_IN_A_ROW), 1.0))
    assert {row["status"] for row in rows} == {429}
    assert len(rows) == 3 * FAILURES_IN_A_ROW


@pytest.mark.parametrize("status", [429, 500])
def test_what_fails_in_a_closed_loop_ends_it(bench: Callable[..., Bench], status: int) -> None:
    cell = Cell(mode="eager", batch_size=1, requests=30)
    with pytest.raises(Abort, match="10 requests in a row failed"):
        list(bench(cell, status=status).visits.measured(cell, 1, range(30), None))


def test_requests_that_fail_in_an_open_loop_end_it(bench: Callable[..., Bench]) -> None:
    cell = opened(0.5)
    with pytest.raises(Abort):
        list(bench(cell, status=500).visits.measured(cell, 1, range(30), 1.0))


def sent_before(made: Bench, cell: Cell, indexes: Sequence[int]) -> tuple[list[str], list[dict[str, object]]]:
    """The stages of a visit's rows, and the bodies of its requests."""
    bodies: list[dict[str, object]] = []
    closed = made.service.closed

    def noted(requests: Sequence[LoadRequest], concurrency: int) -> Ended:
        bodies.extend(json.loads(request.body) for request in requests)
        return closed(requests, concurrency)

    made.service.closed = noted  # type: ignore[method-assign]
    rows = list(made.visits.measured(cell, 4, indexes, None))
    return [row["stage"] for row in rows], bodies


def test_before_a_closed_visit_one_more_request_is_sampled(bench: Callable[..., Bench]) -> None:
    cell = Cell(mode="eager", batch_size=1, requests=3)
    stages, bodies = sent_before(bench(cell, sampled=True), cell, range(3))
    assert stages == ["sample", "measure", "measure", "measure"]
    assert [body.pop("sample", False) for body in bodies] == [True, False, False, False]
    assert bodies[0] == bodies[1]


def test_a_visit_that_is_gone_on_with_is_sampled_again(bench: Callable[..., Bench]) -> None:
    cell = Cell(mode="eager", batch_size=1, requests=3)
    stages, _ = sent_before(bench(cell, sampled=True), cell, [2])
    assert stages == ["sample", "measure"]


def test_nothing_is_sampled_where_the_service_cannot_or_in_an_open_loop(bench: Callable[..., Bench]) -> None:
    cell = Cell(mode="eager", batch_size=1, requests=3)
    assert sent_before(bench(cell), cell, range(3))[0] == ["measure"] * 3
    rows = bench(opened(0.3), sampled=True).visits.measured(opened(0.3), 4, range(100), 3.0)
    assert {row["stage"] for row in rows} == {"measure"}


@pytest.mark.parametrize(
    ("engine", "expected"),
    [({}, False), ({"no_samples": None}, True), ({"no_samples": "forbidden"}, False)],
)
def test_a_service_is_asked_for_samples_only_where_it_says_that_it_takes_them(
    engine: dict[str, object], expected: bool
) -> None:
    assert can_sample(engine) is expected
