"""Every gate: what passes it, and what fails it, of made results and of load by a schedule."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtests.plan.cells import Cell, Plan
from loadtests.report.results import read_results
from loadtests.run.gates import MOST_DELAY, VALIDATION_FILE, Gate
from loadtests.run.rows import RequestRow, RowSources
from loadtests.run.run_file import Client, CutBlock, InterimCheck, SweepRun, read_run
from tests.support.made_plans import make_report, read_rows
from tests.support.made_results import make_results, scrape_text
from tests.support.sweeping import validate

Made = tuple[SweepRun, list[RequestRow]]
changed = msgspec.structs.replace


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = make_results(tmp_path_factory.mktemp("made"))
    return read_run(folder), [
        changed(row, text_digest=f"{row.batch_size}/{row.round}/{row.index}") for row in read_rows(folder)
    ]


def gate(name: str, run: SweepRun, rows: Iterable[RequestRow], *scrapes: str) -> Gate:
    """The gate whose name begins so."""
    before, after = scrapes or (None, None)
    return next(one for one in validate(run, rows, before, after) if one.name.startswith(name))


def altered(rows: list[RequestRow], chosen: Callable[[RequestRow], bool], **fields: Any) -> list[RequestRow]:
    """`rows`, the chosen ones with other `fields`."""
    return [changed(row, **fields) if chosen(row) else row for row in rows]


COMPILED = "compiled b=4 short n=32 c=1"


def compiled(row: RequestRow) -> bool:
    return row.cell == COMPILED


def test_equal_texts_pass_and_one_that_differs_fails_in_float32_only(made: Made) -> None:
    run, rows = made
    name = "same texts in all modes"
    assert gate(name, run, rows).passed
    wrong = altered(rows, lambda row: compiled(row) and row.round == 3, text_digest="other")
    assert gate(name, run, wrong).failed
    assert f"{COMPILED} (2 ×)" in gate(name, run, wrong).detail
    half = changed(run, engine=run.engine | {"dtype": "bfloat16"})
    found = gate(name, half, wrong)
    assert (found.passed, found.failed) == (False, False)
    others = altered(rows, lambda row: row.mode != "eager", text_digest="other")
    assert "eager" not in gate(name, run, others).detail
    older = altered(rows, lambda _: True, text_digest=None)
    assert gate(name, run, older).passed is None


def test_counts_of_one_replica_are_not_held_against_the_rows_of_all(made: Made) -> None:
    run, rows = made
    name = "client rows = server's count"
    assert gate(name, run, rows).failed
    found = gate(name, changed(run, plan=changed(run.plan, replicas=True)), rows)
    assert found.passed is None
    assert found.detail.startswith("not judged: several replicas")


def test_rows_that_fell_back_are_counted_as_fallbacks(made: Made) -> None:
    run, rows = made
    counted = Counter(row.mode for row in rows)
    fell = altered(rows, lambda row: row.mode == "compiled", effective_mode="eager")
    name, of_compiled = "client rows = server's count", counted["compiled"]
    assert gate(name, run, fell, scrape_text({}), scrape_text(counted)).failed
    counted += Counter({"fallback": of_compiled, "compiled": -of_compiled})
    assert gate(name, run, fell, scrape_text({}), scrape_text(counted)).passed


@pytest.mark.parametrize(("slower", "passed"), [(1.0, True), (1.015, True), (1.06, False)])
def test_eager_against_itself_warns_beyond_two_percent_only(made: Made, slower: float, passed: bool) -> None:
    run, rows = made
    name = "eager against itself"
    slowed = [
        changed(row, latency_from_intended_seconds=slower * row.latency_seconds) if row.control else row
        for row in rows
    ]
    found = gate(name, run, slowed)
    assert (found.passed, found.warning) == (passed, True)
    assert passed or "b=4 short n=32 c=1 ×0.9" in found.detail
    assert gate(name, run, [row for row in rows if not row.control]).passed is None


def test_more_than_one_request_in_a_hundred_that_queued_is_a_warning(made: Made) -> None:
    run, rows = made
    name = "queue at concurrency 1 is 0"
    assert gate(name, run, rows).passed
    one = [changed(rows[-1], queue_seconds=0.003), *rows[:-1]]
    assert gate(name, run, one).passed
    assert "1 of 288" in gate(name, run, one).detail
    many = altered(rows, compiled, queue_seconds=0.0008)
    assert gate(name, run, many).passed is False
    assert "16 of 288 requests waited over 0.2 ms, the longest 0.8 ms" in gate(name, run, many).detail
    in_parallel = altered(many, lambda _: True, concurrency=4)
    assert gate(name, run, in_parallel).passed is None


def test_requests_in_steps_of_others_are_a_warning_that_names_their_cells(made: Made) -> None:
    run, rows = made
    name = "requests not merged"
    assert gate(name, run, rows).passed is None
    merging = changed(run, engine={**run.engine, "batching": "continuous"})
    assert gate(name, merging, altered(rows, compiled, sources=RowSources(steps="own"))).passed
    found = gate(name, merging, altered(rows, compiled, sources=RowSources(steps="shared")))
    assert (found.passed, found.warning) == (False, True)
    assert f"continuous: 16 of 288 ran in steps of others: {COMPILED} (16 ×)" in found.detail


def test_groups_left_undecided_are_named(made: Made) -> None:
    run, rows = made
    name = "answers resolved"
    assert gate(name, run, rows).passed is None
    assert gate(name, changed(run, looks=[InterimCheck(round=8, undecided=[])]), rows).passed
    looks = [InterimCheck(round=8, undecided=["b=1", "b=4"]), InterimCheck(round=24, undecided=["b=4"])]
    found = gate(name, changed(run, looks=looks), rows)
    assert found.passed is False
    assert "after 24 rounds not resolved: b=4;" in found.detail


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("complete", {"complete": False}),
        ("complete", {"order": []}),
        ("client CPU", {"client": Client(cpus=[0], cpu_share=0.9)}),
    ],
)
def test_an_incomplete_run_or_one_of_a_busy_client_is_never_valid(
    made: Made, name: str, fields: dict[str, Any]
) -> None:
    run, rows = made
    assert gate(name, run, rows).passed
    assert gate(name, changed(run, **fields), rows).failed


def test_gates_are_checked_anew_from_rows_and_scrapes_and_not_read_from_their_file(tmp_path: Path) -> None:
    make_results(tmp_path)
    (tmp_path / VALIDATION_FILE).write_text('{"passed": false, "gates": []}')
    assert not read_results(tmp_path).failed_gates
    make_report(tmp_path)
    assert json.loads((tmp_path / VALIDATION_FILE).read_text())["passed"] is True
    rows = (tmp_path / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "requests.jsonl").write_bytes(b"".join(rows[:-1]))
    failed = {one.name: one.detail for one in read_results(tmp_path).failed_gates}
    assert failed.keys() == {"complete", "client rows = server's count"}
    assert "the first request without a row is in round 8" in failed["complete"]


CLOSED = Cell(mode="eager", batch_size=1)
BELOW = Cell(mode="eager", batch_size=1, load=0.5, requests=200)
PAST = Cell(mode="eager", batch_size=1, load=1.5, requests=200)
OWN_RATE = Cell(mode="eager", batch_size=1, rate=40.0, requests=200)

SERVICE_SECONDS = 0.02


def run_of(*cells: Cell, **fields: Any) -> SweepRun:
    plan = Plan(preset="own", seed=1, rounds=1, cells=(CLOSED, *cells))
    return SweepRun(run="a-run", url="", plan=plan, seed=1, started="2026-01-01T00:00:00Z", **fields)


A_ROW = RequestRow(
    run="a-run", cell="", control=False, round=1, sequence=0, stage="measure", mode="eager",
    effective_mode="eager", batch_size=1, prompt_set="short", new_tokens=32, concurrency=1, load=None,
    request_id="", intended_start=0.0, start=0.0, latency_seconds=0.0, latency_from_intended_seconds=0.0,
    status=200, error=None, index=0,
)  # fmt: skip


def arrivals(cell: Cell, delay: float = 1e-4, count: int = 200) -> list[RequestRow]:
    """A block to a queue of one server: arrivals at equal gaps, each sent `delay` seconds late."""
    rate = cell.rate or (cell.load or 0.0) / SERVICE_SECONDS
    rows, free = list[RequestRow](), 0.0
    for index in range(count):
        start = index / rate + delay
        free = max(free, start) + SERVICE_SECONDS
        at = {"intended_start": index / rate, "start": start, "sequence": index, "index": index}
        waited = {
            "latency_seconds": free - start,
            "latency_from_intended_seconds": free - index / rate,
            "queue_seconds": free - start - SERVICE_SECONDS,
        }
        of_cell = {"cell": cell.name, "load": cell.load, "rate": cell.rate, "request_id": str(index)}
        rows.append(changed(A_ROW, **of_cell, **at, **waited))
    return rows


def refused(row: RequestRow) -> RequestRow:
    """The same request, refused because the queue was full."""
    return changed(row, status=429, error="64 requests are unfinished", queue_seconds=None)


@pytest.mark.parametrize("cell", [PAST, OWN_RATE], ids=lambda cell: cell.name)
def test_what_a_full_queue_refuses_is_no_error(cell: Cell) -> None:
    rows = arrivals(cell)
    rows[-30:] = map(refused, rows[-30:])
    found = gate("no errors", run_of(cell), rows)
    assert found.passed
    assert found.detail == "0 of 200 requests failed, 30 rejected past saturation"
    assert gate("rejected", run_of(cell), rows).passed
    before, after = (
        f'launchbound_requests_total{{mode="eager",outcome="{kind}"}} {count}\n'
        for kind, count in (("ok", 0), ("rejected", 200))
    )
    assert gate("client rows", run_of(cell), rows, before, after).passed


def test_a_failure_past_saturation_stays_an_error_and_a_refusal_below_it_is_a_warning() -> None:
    rows = arrivals(PAST)
    rows[3] = changed(rows[3], status=500, error="the engine broke")
    rows[4] = refused(rows[4])
    found = gate("no errors", run_of(PAST), rows)
    assert found.failed
    assert found.detail == "1 of 200 requests failed, 1 rejected past saturation; 1 × the engine broke"

    rows = arrivals(BELOW)
    assert gate("rejected", run_of(BELOW), rows).passed
    rows[7] = refused(rows[7])
    found = gate("rejected", run_of(BELOW), rows)
    assert (found.passed, found.warning) == (False, True)
    assert f"{BELOW.name} (1 ×)" in found.detail
    assert gate("no errors", run_of(BELOW), rows).passed


@pytest.mark.parametrize(("stage", "cell"), [("warmup", PAST), ("measure", CLOSED)])
def test_a_refusal_of_requests_sent_one_at_a_time_is_an_error(stage: Any, cell: Cell) -> None:
    rows = arrivals(PAST)
    closed = {"cell": cell.name, "load": cell.load, "stage": stage}
    rows[0] = changed(refused(rows[0]), **closed)
    assert not rows[0].rejected
    assert gate("no errors", run_of(PAST), rows).failed


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


def test_the_rate_of_own_arrivals_is_checked_and_a_cut_block_by_what_it_sent() -> None:
    name = "achieved/target rate"
    assert gate(name, run_of(OWN_RATE), arrivals(OWN_RATE)).passed
    slower = [changed(row, start=1.05 * row.intended_start) for row in arrivals(OWN_RATE, count=30)]
    assert gate(name, run_of(OWN_RATE), slower).failed
    assert gate(name, run_of(PAST), arrivals(PAST, count=12)).passed
    alone = gate(name, run_of(PAST), arrivals(PAST, count=1))
    assert alone.passed is None


def test_blocks_that_were_cut_are_counted_and_below_saturation_a_warning() -> None:
    name = "cut past saturation only"
    cut = [CutBlock(round=n, cell=PAST.name, sent=40, reason="its queue only grew") for n in (1, 2)]
    found = gate(name, run_of(BELOW, PAST, cut_visits=cut), [])
    assert found.passed
    assert found.detail == f"2 blocks cut: {PAST.name} (2 ×)"
    early = [CutBlock(round=1, cell=BELOW.name, sent=40, reason="its queue only grew")]
    found = gate(name, run_of(BELOW, PAST, cut_visits=[*cut, *early]), [])
    assert (found.passed, found.warning) == (False, True)
    assert found.detail.endswith(f"; below saturation: {BELOW.name}")


def test_a_step_that_its_samples_do_not_split_warns_and_is_named(made: Made) -> None:
    run, rows = made

    def sampled(**seen: int) -> Gate:
        phase = next(row.decode for row in rows if compiled(row))
        counts = {"kernel": 60, "host": 20, "unclassified": 0, "system": 0, **seen}
        fields = {f"{side}_samples": count for side, count in counts.items()}
        return gate("samples split", run, altered(rows, compiled, decode=changed(phase, **fields)))

    assert gate("samples split", run, rows).passed is None
    assert sampled(unclassified=20, system=100).passed
    for unknown in (sampled(unclassified=21), sampled(system=81)):
        assert (unknown.passed, unknown.failed) == (False, False)
        assert f"0 of 1; dispatch and kernel are unknown of decode of {COMPILED}" in unknown.detail
