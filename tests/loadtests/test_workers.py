"""Sweeps by more than one load process, against a stand-in for the service."""

from __future__ import annotations

import io
import os
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from loadtests.plan.cells import Cell, Plan
from loadtests.run import sweep
from loadtests.run.events import (
    Assignment,
    GeneratorEvent,
    GeneratorStarted,
    RequestEnded,
    run_load_generator,
)
from loadtests.run.rows import read_rows
from loadtests.run.run_file import read_run
from loadtests.run.sweep import SweepResult, resume_sweep, run_sweep
from tests.support.fake_service import Script, fake_service
from tests.support.processes import gone
from tests.support.serving import until
from tests.support.sweeping import OF_TIME, failed, raw_rows, swept

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("impatient")]

CELLS = (
    Cell(mode="eager", batch_size=1, new_tokens=4, requests=4),
    Cell(mode="compiled", batch_size=1, new_tokens=4, requests=9, concurrency=3),
    Cell(mode="eager", batch_size=1, new_tokens=4, requests=8, load=0.1),
)
PLAN = Plan(preset="own", seed=3, rounds=2, cells=CELLS)


def load_processes(parent: int | None = None) -> list[psutil.Process]:
    """The load processes that this process's sweeps have at the moment."""
    children = psutil.Process(parent).children(recursive=True)
    return [child for child in children if "loadtests.run.locust_users" in child.cmdline()]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepResult, Script]:
    """A sweep by two load processes that went well, and what the service saw."""
    script, folder = Script(api_key="secret"), tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LAUNCHBOUND_API_KEY", "secret")
        return swept(folder, script, PLAN, workers=2), script


def test_every_request_has_one_row_in_the_order_in_which_they_ended(good: tuple[SweepResult, Script]) -> None:
    result, script = good
    rows = read_rows(result.folder)
    counts = Counter((row.cell, row.round) for row in rows if row.stage == "measure")
    assert counts == {(cell.name, number): cell.requests for cell in CELLS for number in range(1, 3)}
    assert [row.sequence for row in rows] == list(range(len(rows)))
    assert sorted(headers["x-request-id"] for headers in script.headers) == sorted(r.request_id for r in rows)
    assert failed(result) <= OF_TIME


def test_requests_are_spread_over_the_load_processes_of_which_the_run_tells(
    good: tuple[SweepResult, Script],
) -> None:
    for cell in CELLS:
        workers = Counter(row["worker"] for row in raw_rows(good[0].folder) if row["cell"] == cell.name)
        assert workers.keys() == {0, 1}
        assert min(workers.values()) >= 0.25 * workers.total()
    rows = [row for row in read_rows(good[0].folder) if row.load is not None and row.stage == "measure"]
    assert rows
    assert all(row.start >= row.intended_start for row in rows)
    run = read_run(good[0].folder)
    assert run.settings["workers"] == 2
    used = [one.client_cpu_seconds for one in run.machine_by_round]
    assert None not in used, "0 is possible: the kernel counts in hundredths of a second"
    assert any(used)


def killed(number: signal.Signals, *arguments: Any) -> Iterator[GeneratorEvent | None]:
    """The load generator's events; at the first request's end one of its load processes gets a signal.

    Early, because on a busy machine events are read long after they were sent.
    """
    sent = False
    for event in run_load_generator(*arguments):
        yield event
        if isinstance(event, RequestEnded) and not sent:
            load_processes()[0].send_signal(number)
            sent = True


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "ended with signal 9"), (signal.SIGSTOP, "no longer answers the load generator")],
    ids=["killed", "stopped"],
)
def test_a_load_process_that_is_lost_ends_the_sweep_which_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, said: str
) -> None:
    quiet = partial(Console, file=io.StringIO())
    with fake_service(Script()) as url:
        with monkeypatch.context() as patched:
            patched.setattr(sweep, "run_load_generator", partial(killed, number))
            first = run_sweep(url, PLAN, tmp_path, console=quiet(), exporter_port=0, workers=2)
        assert said in (first.run.stopped_because or "")
        kept = read_rows(tmp_path)
        assert kept
        assert all(row.ok for row in kept)
        assert not load_processes()
        if number == signal.SIGSTOP:
            return  # how it goes on is the same
        second = resume_sweep(url, tmp_path, console=quiet(), exporter_port=0)
    rows = read_rows(tmp_path)
    assert rows[: len(kept)] == kept
    assert second.run.complete
    assert second.run.settings["workers"] == 2
    assert {row["worker"] for row in raw_rows(tmp_path) if row["part"] == 2} == {0, 1}
    counts = Counter((row.cell, row.round) for row in rows if row.stage == "measure")
    assert counts == {(cell.name, number): cell.requests for cell in CELLS for number in range(1, 3)}


def test_load_processes_keep_off_the_engines_cores_and_end_with_the_load_generator(tmp_path: Path) -> None:
    avoided = max(os.sched_getaffinity(0))
    allowed = os.sched_getaffinity(0) - {avoided} or {avoided}
    with fake_service(Script()) as url:
        assignment = Assignment(
            run="a",
            url=url,
            folder=str(tmp_path),
            plan=PLAN,
            avoid_cpus=[avoided],
            workers=2,
        )
        events = run_load_generator(assignment, tmp_path / "log")
        assert isinstance(next(event for event in events if event is not None), GeneratorStarted)
        started = load_processes()
        assert [set(process.cpu_affinity()) for process in started] == [allowed, allowed]
        (generator,) = {process.ppid() for process in started}
        os.kill(generator, signal.SIGKILL)
        until(lambda: all(gone(process.pid) for process in started), "the end of the load processes")
        events.close()
