"""What a plan owes after visits were cut, and how a killed sweep knows it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from loadtests.plan.cells import Cell, Plan
from loadtests.run.events import BlockCut, EventWriter, MeasuringBegan
from loadtests.run.resumption import recover
from loadtests.run.rows import RequestRow, read_rows
from loadtests.run.run_file import CutBlock, Part, read_run
from loadtests.run.schedule import Finished, Planned, first_missing, is_whole
from tests.support.made_results import make_results

CLOSED = Cell(mode="eager", batch_size=1)
PAST = Cell(mode="eager", batch_size=1, rate=99.0, requests=10)
PLAN = Plan(preset="own", seed=1, rounds=2, cells=(CLOSED, PAST))
CUT = CutBlock(round=2, cell=PAST.name, sent=4, reason="the queue only grows")


def rows(folder: Path, plan: Plan = PLAN) -> list[RequestRow]:
    """A row of every request of `plan`, each with its index."""
    make_results(folder, plan=plan)
    counts = dict[tuple[str, int], int]()
    found = []
    for row in read_rows(folder):
        if row.stage == "measure":
            key = (row.cell, row.round)
            counts[key] = counts.get(key, -1) + 1
            found.append(msgspec.structs.replace(row, index=counts[key]))
    return found


def test_requests_that_a_cut_visit_did_not_send_are_not_owed(tmp_path: Path) -> None:
    have = [row for row in rows(tmp_path) if row.cell != PAST.name or row.round == 1 or (row.index or 0) < 4]
    assert first_missing(PLAN, Finished(have), Planned()) == (2, PAST)
    assert first_missing(PLAN, Finished(have), Planned([CUT])) is None


def test_requests_that_were_in_flight_when_a_cut_visit_was_killed_are_owed(tmp_path: Path) -> None:
    have = [row for row in rows(tmp_path) if row.cell != PAST.name or row.round == 1 or (row.index or 0) < 2]
    finished, owed = Finished(have), Planned([CUT])
    assert (owed.requests(1, PAST), owed.requests(2, PAST)) == (10, 4)
    assert finished.missing(2, PAST, 4) == [2, 3]
    assert first_missing(PLAN, finished, owed) == (2, PAST)


def test_a_killed_sweep_finds_its_rates_and_cut_visits_again(tmp_path: Path) -> None:
    have = rows(tmp_path)
    run = read_run(tmp_path)
    run.ended, run.parts = None, [Part(number=1, started="")]
    run.cut_visits = [CUT]
    later = msgspec.structs.replace(CUT, sent=2)
    with EventWriter(tmp_path, 1) as kept:
        for event in (MeasuringBegan({PAST.name: 99.0}, None), BlockCut(CUT)):
            kept.write(event)
        kept.write(BlockCut(later))
    recover(tmp_path, run, Finished(have))
    assert run.cut_visits == [later]
    assert run.client.rates == {PAST.name: 99.0}


def test_a_run_is_whole_by_what_it_owes(tmp_path: Path) -> None:
    have = [
        row for row in rows(tmp_path) if row.cell == CLOSED.name or (row.cell == PAST.name and row.round == 1)
    ]
    run = read_run(tmp_path)
    assert not is_whole(run, Finished(have))
    run.cut_visits = [msgspec.structs.replace(CUT, sent=0)]
    assert is_whole(run, Finished(have))
