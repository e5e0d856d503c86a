"""Gates of load by a schedule: what is an error, what is saturation, and what is the client's own lag."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from loadtests.plan.cells import Cell, Plan
from loadtests.run.gates import MOST_DELAY, Gate
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import CutBlock, SweepRun
from tests.support.gates import validate

CLOSED = Cell(mode="eager", batch_size=1)
BELOW = Cell(mode="eager", batch_size=1, load=0.5, requests=200)
PAST = Cell(mode="eager", batch_size=1, load=1.5, requests=200)
OWN_RATE = Cell(mode="eager", batch_size=1, rate=40.0, requests=200)

SERVICE_SECONDS = 0.02


def run_of(*cells: Cell, **fields: Any) -> SweepRun:
    plan = Plan(preset="own", seed=1, rounds=1, cells=(CLOSED, *cells))
    return SweepRun(run="a-run", url="", plan=plan, seed=1, started="2026-01-01T00:00:00Z", **fields)


def arrivals(cell: Cell, delay: float = 1e-4, count: int = 200, **fields: Any) -> list[RequestRow]:
    """A visit to a queue of one server: arrivals at equal gaps, each sent `delay` seconds late."""
    rate = cell.rate or (cell.load or 0.0) / SERVICE_SECONDS
    rows, free = list[RequestRow](), 0.0
    for index in range(count):
        start = index / rate + delay
        free = max(free, start) + SERVICE_SECONDS
        row = RequestRow(
            run="a-run",
            cell=cell.name,
            control=False,
            round=1,
            sequence=index,
            stage="measure",
            mode=cell.mode,
            effective_mode=cell.mode,
            batch_size=1,
            prompt_set="short",
            new_tokens=32,
            concurrency=1,
            load=cell.load,
            rate=cell.rate,
            request_id=str(index),
            intended_start=index / rate,
            start=start,
            latency_seconds=free - start,
            latency_from_intended_seconds=free - index / rate,
            queue_seconds=free - start - SERVICE_SECONDS,
            status=200,
            error=None,
            index=index,
        )
        rows.append(msgspec.structs.replace(row, **fields))
    return rows


def refused(row: RequestRow) -> RequestRow:
    """The same request, refused because the queue was full."""
    return msgspec.structs.replace(row, status=429, error="64 requests are unfinished", queue_seconds=None)


def gate(name: str, run: SweepRun, rows: Iterable[RequestRow], **scrapes: str) -> Gate:
    before, after = scrapes.get("before"), scrapes.get("after")
    return next(one for one in validate(run, rows, before, after) if one.name.startswith(name))


@pytest.mark.parametrize("cell", [PAST, OWN_RATE], ids=lambda cell: cell.name)
def test_what_a_full_queue_refuses_is_no_error(cell: Cell) -> None:
    rows = arrivals(cell)
    rows[-30:] = map(refused, rows[-30:])
    found = gate("no errors", run_of(cell), rows)
    assert found.passed
    assert found.detail == "0 of 200 requests failed, 30 rejected past saturation"
    assert gate("rejected", run_of(cell), rows).passed


def test_a_failure_past_saturation_stays_an_error() -> None:
    rows = arrivals(PAST)
    rows[3] = msgspec.structs.replace(rows[3], status=500, error="the engine broke")
    rows[4] = refused(rows[4])
    found = gate("no errors", run_of(PAST), rows)
    assert found.failed
    assert found.detail == "1 of 200 requests failed, 1 rejected past saturation; 1 × the engine broke"


@pytest.mark.parametrize(("stage", "cell"), [("warmup", PAST), ("measure", CLOSED)])
def test_a_refusal_of_requests_sent_one_at_a_time_is_an_error(stage: Any, cell: Cell) -> None:
    rows = arrivals(PAST)
    closed = {"cell": cell.name, "load": cell.load, "stage": stage}
    rows[0] = msgspec.structs.replace(refused(rows[0]), **closed)
    assert not rows[0].rejected
    assert gate("no errors", run_of(PAST), rows).failed


def test_a_refusal_below_saturation_is_a_warning_that_names_the_cell() -> None:
    rows = arrivals(BELOW)
    assert gate("rejected", run_of(BELOW), rows).passed
    rows[7] = refused(rows[7])
    found = gate("rejected", run_of(BELOW), rows)
    assert (found.passed, found.warning) == (False, True)
    assert f"{BELOW.name} (1 ×)" in found.detail
    assert gate("no errors", run_of(BELOW), rows).passed


def test_the_server_counts_refused_and_searching_requests_too() -> None:
    rows = arrivals(PAST)
    rows[5] = refused(rows[5])
    rows[6] = msgspec.structs.replace(rows[6], stage="search")
    text = 'launchbound_requests_total{{mode="eager",outcome="{}"}} {}\n'
    before = text.format("ok", 0)
    count = "client rows = server's count"
    after = text.format("ok", 199) + text.format("rejected", 1)
    assert gate(count, run_of(PAST), rows, before=before, after=after).passed
    assert gate(count, run_of(PAST), rows, before=before, after=text.format("ok", 199)).failed


def test_searching_requests_are_in_no_gate_of_measured_ones() -> None:
    searching = arrivals(PAST, delay=1.0, stage="search")
    assert gate("schedule delay", run_of(PAST), searching).passed is None
    assert gate("achieved", run_of(PAST), searching).passed is None
    assert gate("no errors", run_of(PAST), searching).passed


def test_a_queue_past_saturation_is_no_delay_of_the_client() -> None:
    rows = arrivals(PAST)
    assert max(row.latency_from_intended_seconds for row in rows) > 10 * SERVICE_SECONDS
    found = gate("schedule delay", run_of(PAST), rows)
    assert found.passed
    assert "99th percentile at most 0.10 ms, 0.5%" in found.detail


@pytest.mark.parametrize(("share", "passed"), [(0.9, True), (1.1, False)])
def test_sends_later_than_a_share_of_the_latency_without_load_are_a_warning(
    share: float, passed: bool
) -> None:
    delay = share * MOST_DELAY * SERVICE_SECONDS
    found = gate("schedule delay", run_of(BELOW, PAST), [*arrivals(PAST), *arrivals(BELOW, delay)])
    assert found.passed is passed
    assert BELOW.name in found.detail
    assert found.warning


def test_one_late_send_in_a_hundred_is_allowed_and_two_are_not() -> None:
    rows = arrivals(BELOW, count=200)
    late = arrivals(BELOW, delay=1.0, count=200)
    assert gate("schedule delay", run_of(BELOW), [*late[:2], *rows[2:]]).passed
    assert gate("schedule delay", run_of(BELOW), [*late[:3], *rows[3:]]).passed is False


def test_the_rate_of_own_arrivals_is_checked_and_a_cut_visit_by_what_it_sent() -> None:
    name = "achieved/target rate"
    assert gate(name, run_of(OWN_RATE), arrivals(OWN_RATE)).passed
    slower = [
        msgspec.structs.replace(row, start=1.05 * row.intended_start) for row in arrivals(OWN_RATE, count=30)
    ]
    assert gate(name, run_of(OWN_RATE), slower).failed
    assert gate(name, run_of(PAST), arrivals(PAST, count=12)).passed
    alone = gate(name, run_of(PAST), arrivals(PAST, count=1))
    assert alone.passed is None


def test_visits_that_were_cut_are_counted_and_below_saturation_a_warning() -> None:
    name = "cut past saturation only"
    cut = [CutBlock(round=n, cell=PAST.name, sent=40, reason="its queue only grew") for n in (1, 2)]
    found = gate(name, run_of(BELOW, PAST, cut_visits=cut), [])
    assert found.passed
    assert found.detail == f"2 visits cut: {PAST.name} (2 ×)"
    early = [CutBlock(round=1, cell=BELOW.name, sent=40, reason="its queue only grew")]
    found = gate(name, run_of(BELOW, PAST, cut_visits=[*cut, *early]), [])
    assert (found.passed, found.warning) == (False, True)
    assert found.detail.endswith(f"; below saturation: {BELOW.name}")


def test_a_closed_loop_has_no_gate_of_arrivals() -> None:
    rows = [msgspec.structs.replace(row, cell=CLOSED.name, load=None) for row in arrivals(BELOW)]
    names = ("achieved", "schedule delay", "rejected", "cut")
    assert [gate(name, run_of(), rows).passed for name in names] == [None] * 4
