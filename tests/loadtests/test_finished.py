"""What a plan owes after visits were cut and searches found nothing, and how a killed sweep knows it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from loadtests.plan.cells import Cell, Plan
from loadtests.run.assignment import MeasuringBegan, SearchEnded, VisitCut
from loadtests.run.events_file import EventWriter
from loadtests.run.finished import Finished, Owed, first_missing, is_whole
from loadtests.run.history import recover
from loadtests.run.open_loop import CutVisit, Search, SearchProbe
from loadtests.run.rows import RequestRow, read_rows
from loadtests.run.run_file import Part, read_run
from tests.support.made_results import make_results

CLOSED = Cell(mode="eager", batch_size=1)
PAST = Cell(mode="eager", batch_size=1, rate=99.0, requests=10)
FOUND = Cell(mode="eager", batch_size=1, load=0.9, share_of="search", requests=10)
PLAN = Plan(preset="own", seed=1, rounds=2, cells=(CLOSED, PAST))
CUT = CutVisit(round=2, cell=PAST.name, sent=4, reason="the queue only grows")
PROBES = [SearchProbe(rate=5.0, requests=60, met_share=0.2, cut=False)]
FRUITLESS = Search(mode="eager", batch_size=1, new_tokens=32, probes=PROBES, rate=None)


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
    assert first_missing(PLAN, Finished(have), Owed()) == (2, PAST)
    assert first_missing(PLAN, Finished(have), Owed([CUT])) is None


def test_requests_that_were_in_flight_when_a_cut_visit_was_killed_are_owed(tmp_path: Path) -> None:
    have = [row for row in rows(tmp_path) if row.cell != PAST.name or row.round == 1 or (row.index or 0) < 2]
    finished, owed = Finished(have), Owed([CUT])
    assert (owed.requests(1, PAST), owed.requests(2, PAST)) == (10, 4)
    assert finished.missing(2, PAST, 4) == [2, 3]
    assert first_missing(PLAN, finished, owed) == (2, PAST)


def test_cells_whose_search_found_no_rate_are_not_owed() -> None:
    other = msgspec.structs.replace(FOUND, mode="compiled")
    own = msgspec.structs.replace(FOUND, share_of="capacity")
    owed = Owed(searches=[FRUITLESS])
    assert [owed.requests(1, cell) for cell in (FOUND, other, own, CLOSED)] == [0, 10, 10, 3]
    served = msgspec.structs.replace(FRUITLESS, rate=5.0)
    assert Owed(searches=[served]).requests(1, FOUND) == 10


def test_a_killed_sweep_finds_its_rates_searches_and_cut_visits_again(tmp_path: Path) -> None:
    have = rows(tmp_path)
    run = read_run(tmp_path)
    run.ended, run.parts = None, [Part(number=1, started="")]
    run.searches, run.cut_visits = [FRUITLESS, FRUITLESS], [CUT]
    later = msgspec.structs.replace(CUT, sent=2)
    with EventWriter(tmp_path, 1) as kept:
        for event in (SearchEnded(FRUITLESS), MeasuringBegan({PAST.name: 99.0}, None), VisitCut(CUT)):
            kept.write(event)
        kept.write(VisitCut(later))
    recover(tmp_path, run, Finished(have))
    assert (run.searches, run.cut_visits) == ([FRUITLESS], [later])
    assert run.client.rates == {PAST.name: 99.0}


def test_a_run_is_whole_by_what_it_owes(tmp_path: Path) -> None:
    plan = msgspec.structs.replace(PLAN, cells=(CLOSED, PAST, FOUND))
    have = [
        row
        for row in rows(tmp_path, plan)
        if row.cell == CLOSED.name or (row.cell == PAST.name and row.round == 1)
    ]
    run = read_run(tmp_path)
    assert not is_whole(run, Finished(have))
    run.cut_visits, run.searches = [msgspec.structs.replace(CUT, sent=0)], [FRUITLESS]
    assert is_whole(run, Finished(have))
