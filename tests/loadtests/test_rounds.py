"""When warm-up has settled, which rounds and groups follow, and which requests still have no row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from random import Random

import msgspec

from loadtests.plan.cells import Cell, Plan
from loadtests.plan.presets import make_plan
from loadtests.run.events import (
    EVENTS_FILE,
    BlockCut,
    InterimCheckEnded,
    KeptEvent,
    MeasuringBegan,
    PartEvent,
    WarmupPassEnded,
)
from loadtests.run.resumption import recover
from loadtests.run.rows import ROWS_FILE, LineWriter, RequestRow, each_row, read_rows
from loadtests.run.run_file import CutBlock, Part, read_run
from loadtests.run.schedule import Finished, Latencies, Planned, WarmUp, first_missing, is_whole, rounds
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


def two_passes(*changes: float) -> WarmUp:
    """Two passes; each cell's latency is so many times as long in the second."""
    warmup = WarmUp(2, 6)
    warmup.add({f"cell {n}": 0.1 for n in range(len(changes))}, {})
    warmup.add({f"cell {n}": 0.1 * change for n, change in enumerate(changes)}, {})
    return warmup


def test_a_latency_that_fell_by_18_percent_is_a_slope_however_wide_its_interval() -> None:
    wild = two_passes(0.45, 1.3, 0.6, 1.28)
    assert "-18.1%" in wild.reason
    assert not wild.settled
    assert not two_passes(0.82).settled
    assert two_passes(0.8, 1.1, 0.9, 1.05).settled
    assert not two_passes(0.94, 0.945, 0.95, 0.935).settled
    assert two_passes(0.98, 0.981, 0.979, 0.98).settled


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


def test_a_plan_whose_modes_are_far_apart_ends_at_its_first_check() -> None:
    measured, checks = run(make_plan("quick"), {1: CLEAR, 4: CLEAR, 16: CLEAR})
    assert len(measured) == 8
    assert [(one.look.round, one.look.undecided, one.requests) for one in checks] == [(8, [], 0)]


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


CLOSED = Cell(mode="eager", batch_size=1)
PAST = Cell(mode="eager", batch_size=1, rate=99.0, requests=10)
PLAN = Plan(preset="own", seed=1, rounds=2, cells=(CLOSED, PAST))
CUT = CutBlock(round=2, cell=PAST.name, sent=4, reason="the queue only grows")


def measured_rows(folder: Path, past: int) -> list[RequestRow]:
    """The measured rows of PLAN, of which the second block of PAST has so many."""
    make_results(folder, plan=PLAN)
    rows = [row for row in read_rows(folder) if row.stage == "measure"]
    return [row for row in rows if (row.cell, row.round) != (PAST.name, 2) or row.index < past]


def test_requests_that_a_cut_block_did_not_send_need_no_row(tmp_path: Path) -> None:
    rows = measured_rows(tmp_path, 4)
    finished = Finished(rows)
    assert first_missing(PLAN, finished, Planned()) == (2, PAST)
    assert first_missing(PLAN, finished, Planned([CUT])) is None
    run = read_run(tmp_path)
    assert not is_whole(run, finished)
    run.cut_visits = [CUT]
    assert is_whole(run, finished)
    few = [row for row in rows if (row.cell, row.round) != (PAST.name, 2) or row.index < 2]
    finished = Finished(few)
    assert finished.missing(2, PAST, 4) == [2, 3]
    assert first_missing(PLAN, finished, Planned([CUT])) == (2, PAST)


def write_events(folder: Path, part: int, *events: KeptEvent) -> None:
    with LineWriter(folder / EVENTS_FILE) as kept:
        for event in events:
            kept.write(PartEvent(part, event))


def test_a_killed_sweep_finds_its_rates_and_cut_blocks_again(tmp_path: Path) -> None:
    finished = Finished(measured_rows(tmp_path, 10))
    run = read_run(tmp_path)
    run.ended, run.parts, run.cut_visits = None, [Part(number=1, started="")], [CUT]
    later = msgspec.structs.replace(CUT, sent=2)
    write_events(tmp_path, 1, MeasuringBegan({PAST.name: 99.0}, None), BlockCut(CUT), BlockCut(later))
    recover(tmp_path, run, finished)
    assert run.cut_visits == [later]
    assert run.client.rates == {PAST.name: 99.0}


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
