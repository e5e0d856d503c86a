"""Whole sweeps past saturation, against the stand-in with a queue: what is cut, and gone on with."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from loadtests.plan.cells import Cell, Plan, Slo
from loadtests.run import sweep
from loadtests.run.events import (
    BlockCut,
    GeneratorEvent,
    RequestEnded,
    SloSettled,
    read_events,
    run_load_generator,
)
from loadtests.run.rows import RequestRow, read_rows
from loadtests.run.run_file import read_run
from loadtests.run.schedule import Finished, Planned, is_whole
from loadtests.run.sweep import SweepResult, resume_sweep, run_sweep
from tests.support.fake_service import Script, fake_service
from tests.support.sweeping import OF_TIME, failed, swept

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("impatient")]

SERVICE_SECONDS = 0.005
CLOSED = Cell(mode="eager", batch_size=1, new_tokens=4, requests=1)
PAST = Cell(mode="eager", batch_size=1, new_tokens=4, requests=150, rate=600.0)
"""More requests than the load generator has users: on any machine it is cut, for one reason or the other."""
CONSTANT = Cell(mode="eager", batch_size=1, new_tokens=4, requests=4, load=0.2, arrivals="constant")
SHARE = Cell(mode="eager", batch_size=1, new_tokens=4, requests=4, load=0.5)


def plan_of(*cells: Cell) -> Plan:
    return Plan(preset="own", seed=5, rounds=2, cells=(CLOSED, *cells))


def saturated(folder: Path, plan: Plan, out: io.StringIO | None = None, **script: Any) -> SweepResult:
    return swept(folder, Script(service_seconds=SERVICE_SECONDS, **script), plan, out)


def block_sizes(rows: list[RequestRow]) -> Counter[tuple[int, str]]:
    return Counter((row.round, row.cell) for row in rows if row.stage == "measure")


def test_a_block_far_past_saturation_is_cut_and_the_sweep_is_whole(tmp_path: Path) -> None:
    out = io.StringIO()
    result = saturated(tmp_path, plan_of(PAST, CONSTANT), out)
    run, rows = read_run(tmp_path), read_rows(tmp_path)
    assert run.complete
    assert failed(result) <= OF_TIME
    assert {(cut.round, cut.cell) for cut in run.cut_visits} == {(1, PAST.name), (2, PAST.name)}
    assert all(block_sizes(rows)[cut.round, cut.cell] == cut.sent < PAST.requests for cut in run.cut_visits)
    assert block_sizes(rows)[1, CONSTANT.name] == CONSTANT.requests
    assert "cut after" in out.getvalue()
    assert run.client.rates[PAST.name] == 600.0
    assert {row.rate for row in rows if row.cell == PAST.name} == {600.0}


def test_a_stopped_sweep_goes_on_with_its_rates_its_settled_objective_and_its_cut_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at once after a block was cut, while its requests are in flight."""

    def stopping(*arguments: Any) -> Iterator[GeneratorEvent | None]:
        after = 0
        for event in run_load_generator(*arguments):
            yield event
            after += isinstance(event, BlockCut) or (after > 0 and isinstance(event, RequestEnded))
            if after > 2:
                raise KeyboardInterrupt

    plan = msgspec.structs.replace(plan_of(PAST, SHARE), slo=Slo(e2e_of_eager=900.0))
    with fake_service(Script(service_seconds=SERVICE_SECONDS)) as url:
        with monkeypatch.context() as patched:
            patched.setattr(sweep, "run_load_generator", stopping)
            run_sweep(url, plan, tmp_path, console=Console(file=io.StringIO()), exporter_port=0)
        before = read_run(tmp_path)
        assert not before.complete
        settled = before.plan.slo
        assert settled is not None
        assert settled.e2e_seconds is not None
        assert settled.e2e_seconds > 900 * SERVICE_SECONDS
        result = resume_sweep(url, tmp_path, console=Console(file=io.StringIO()), exporter_port=0)
    run, rows = result.run, read_rows(tmp_path)
    assert run.plan.slo == read_run(tmp_path).plan.slo == settled
    assert [isinstance(one.event, SloSettled) for one in read_events(tmp_path)].count(True) == 1
    assert before.client.rates.items() <= run.client.rates.items()
    # What a cut block still lacks may be too much for its queue again: on a busy machine it is cut twice.
    sent = {(one.round, one.cell): one.sent for one in run.cut_visits}
    assert all(sent[one.round, one.cell] <= one.sent for one in before.cut_visits)
    assert is_whole(run, Finished(rows))
    assert run.complete
    measured = Counter((r.round, r.cell, r.index) for r in rows if r.stage == "measure")
    requests = Planned(run.cut_visits).requests
    planned = {(n, c.name, i) for n in (1, 2) for c in run.plan.cells for i in range(requests(n, c))}
    assert planned <= measured.keys()
    assert set(measured.values()) == {1}
