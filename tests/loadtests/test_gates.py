"""Every gate on made results: what passes it, and what fails it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtests.report.report_files import make_report
from loadtests.report.results import read_results
from loadtests.run.gates import Gate, some
from loadtests.run.rows import RequestRow, RowSources, read_rows
from loadtests.run.run_file import InterimCheck, Part, RoundMachine, SweepRun, read_run
from loadtests.run.validation import VALIDATION_FILE
from tests.support.gates import validate
from tests.support.made_results import make_results


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepRun, list[RequestRow]]:
    folder = make_results(tmp_path_factory.mktemp("made"))
    rows = read_rows(folder)
    positions = dict[tuple[str, int], int]()
    numbered = list[RequestRow]()
    for row in rows:
        index = positions[row.cell, row.round] = positions.get((row.cell, row.round), -1) + 1
        digest = f"{row.batch_size}/{row.round}/{index}"
        numbered.append(msgspec.structs.replace(row, index=index, text_digest=digest))
    return read_run(folder), numbered


def gate(name: str, run: SweepRun, rows: list[RequestRow]) -> Gate:
    return next(one for one in validate(run, rows, None, None) if one.name == name)


def changed(run: SweepRun, **fields: Any) -> SweepRun:
    return msgspec.structs.replace(run, **fields)


def altered(rows: list[RequestRow], cell: str, **fields: Any) -> list[RequestRow]:
    """`rows`, those of `cell` with other `fields`."""
    return [msgspec.structs.replace(row, **fields) if row.cell == cell else row for row in rows]


Made = tuple[SweepRun, list[RequestRow]]
COMPILED = "compiled b=4 short n=32 c=1"


def test_failures_stand_before_warnings(made: Made) -> None:
    warnings = [one.warning for one in validate(*made, None, None)]
    assert warnings == sorted(warnings)


def test_equal_texts_pass_and_one_that_differs_fails_in_float32_only(made: Made) -> None:
    run, rows = made
    name = "same texts in all modes"
    assert gate(name, run, rows).passed
    wrong = [
        msgspec.structs.replace(row, text_digest="other") if (row.cell, row.round) == (COMPILED, 3) else row
        for row in rows
    ]
    assert gate(name, run, wrong).failed
    assert f"{COMPILED} (2 ×)" in gate(name, run, wrong).detail
    half = changed(run, engine=run.engine | {"dtype": "bfloat16"})
    found = gate(name, half, wrong)
    assert (found.passed, found.failed) == (False, False)


def test_counts_of_one_replica_are_not_held_against_the_rows_of_all(made: Made) -> None:
    run, rows = made
    name = "client rows = server's count"
    assert gate(name, run, rows).failed
    found = gate(name, changed(run, plan=msgspec.structs.replace(run.plan, replicas=True)), rows)
    assert found.passed is None
    assert found.detail.startswith("not judged: several replicas")


def test_the_mode_that_differs_is_named_and_never_the_baseline(made: Made) -> None:
    run, rows = made
    others = [
        msgspec.structs.replace(row, text_digest="other") if row.mode != "eager" else row for row in rows
    ]
    detail = gate("same texts in all modes", run, others).detail
    assert "eager" not in detail


def test_rows_without_texts_leave_that_gate_open(made: Made) -> None:
    run, rows = made
    older = [msgspec.structs.replace(row, text_digest=None) for row in rows]
    assert gate("same texts in all modes", run, older).passed is None


def test_eager_against_itself_warns_beyond_two_percent_only(made: Made) -> None:
    run, rows = made
    name = "eager against itself"
    assert gate(name, run, rows).passed
    slower = [
        msgspec.structs.replace(row, latency_seconds=row.latency_seconds * (1.06 if row.control else 1.0))
        for row in rows
    ]
    found = gate(name, run, slower)
    assert (found.passed, found.warning) == (False, True)
    assert "b=4 short n=32 c=1 ×0.9" in found.detail
    slightly = [
        msgspec.structs.replace(row, latency_seconds=row.latency_seconds * (1.015 if row.control else 1.0))
        for row in rows
    ]
    assert gate(name, run, slightly).passed
    assert gate(name, run, [row for row in rows if not row.control]).passed is None


def test_more_than_one_request_in_a_hundred_that_queued_is_a_warning(made: Made) -> None:
    run, rows = made
    name = "queue at concurrency 1 is 0"
    assert gate(name, run, rows).passed
    one = [msgspec.structs.replace(rows[-1], queue_seconds=0.003), *rows[:-1]]
    assert gate(name, run, one).passed
    assert "1 of 288" in gate(name, run, one).detail
    many = altered(rows, COMPILED, queue_seconds=0.0008)
    assert gate(name, run, many).passed is False
    assert "16 of 288 requests waited over 0.2 ms, the longest 0.8 ms" in gate(name, run, many).detail
    in_parallel = [msgspec.structs.replace(row, concurrency=4) for row in many]
    assert gate(name, run, in_parallel).passed is None


def test_a_services_window_makes_every_request_wait_and_that_is_no_warning(made: Made) -> None:
    run, rows = made
    waiting = altered(rows, COMPILED, queue_seconds=0.005)
    window = changed(run, engine={**run.engine, "batching": "window"})
    assert gate("queue at concurrency 1 is 0", run, waiting).passed is False
    assert gate("queue at concurrency 1 is 0", window, waiting).passed is None


def test_requests_in_steps_of_others_are_a_warning_that_names_their_cells(made: Made) -> None:
    run, rows = made
    name = "requests not merged"
    assert gate(name, run, rows).passed is None
    merging = changed(run, engine={**run.engine, "batching": "continuous"})
    assert gate(name, merging, altered(rows, COMPILED, sources=RowSources(steps="own"))).passed
    found = gate(name, merging, altered(rows, COMPILED, sources=RowSources(steps="shared")))
    assert (found.passed, found.warning) == (False, True)
    assert f"continuous: 16 of 288 ran in steps of others: {COMPILED} (16 ×)" in found.detail


def test_rounds_in_which_the_machine_was_not_itself_are_named(made: Made) -> None:
    run, rows = made
    assert gate("steady machine", run, rows).passed is None
    machine = [
        RoundMachine(round=n, steal_share=0.001, canary_bytes_per_second=10e9 if n != 4 else 5e9)
        for n in range(1, 9)
    ]
    found = gate("steady machine", changed(run, machine_by_round=machine), rows)
    assert (found.passed, found.warning) == (False, True)
    assert "1 of 8" in found.detail
    assert "round 4 (memory read at 5.0 GB/s" in found.detail
    steady = changed(run, machine_by_round=[machine[0], *machine[4:]])
    assert gate("steady machine", steady, rows).passed


def test_groups_left_undecided_are_named(made: Made) -> None:
    run, rows = made
    name = "fastest modes told apart"
    assert gate(name, run, rows).passed is None
    assert gate(name, changed(run, looks=[InterimCheck(round=8, undecided=[])]), rows).passed
    looks = [InterimCheck(round=8, undecided=["b=1", "b=4"]), InterimCheck(round=24, undecided=["b=4"])]
    found = gate(name, changed(run, looks=looks), rows)
    assert found.passed is False
    assert "after 24 rounds still undecided: b=4;" in found.detail


@pytest.mark.parametrize("fields", [{"complete": False}, {"order": []}])
def test_an_incomplete_run_is_never_valid(made: Made, fields: dict[str, Any]) -> None:
    run, rows = made
    assert gate("complete", run, rows).passed
    assert gate("complete", changed(run, **fields), rows).failed


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


def test_a_long_list_is_cut() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some(["a", "b", "c", "d"]) == "a, b, c, …"


def test_a_part_that_measured_nothing_leaves_its_gap_where_the_next_one_goes_on(made: Made) -> None:
    run, rows = made
    parts = [Part(number=number, started="then", ended="then") for number in (1, 2, 3)]
    later = [msgspec.structs.replace(row, part=3 if row.round >= 3 else 1) for row in rows]
    detail = gate("measured in one go", changed(run, parts=parts), later).detail
    assert detail.startswith("2 gaps: before round 3, from then to then; before round 3, ")
