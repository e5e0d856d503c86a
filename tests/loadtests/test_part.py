"""A part of a sweep: what it knows of the service before it measures, and in which order it begins."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadtests.plan.presets import make_plan
from loadtests.run import sweep, target
from loadtests.run.events import EventWriter, MeasuringBegan, WarmupPassEnded
from loadtests.run.resumption import recover
from loadtests.run.rows import each_row, read_rows
from loadtests.run.run_file import Part, read_run
from loadtests.run.schedule import Finished
from loadtests.run.sweep import run_sweep
from tests.support import fake_service as service
from tests.support.made_results import make_results

PLAN = make_plan("quick", 1, ["eager", "compiled"], [1])


def test_a_part_knows_the_warm_engine_and_samples_clocks_off_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load generator ends at once."""
    status, entered = service.engine_status, list[tuple[str, object]]()
    monkeypatch.setattr(service, "engine_status", lambda *args: status(*args) | {"cpus": [7]})

    def section(name: str) -> Any:
        @contextmanager
        def entering(about: object, *_: object) -> Iterator[None]:
            entered.append((name, about))
            yield

        return entering

    def generator(assignment: Any, log: Path, _: object) -> Iterator[None]:
        entered.append(("generator", assignment.avoid_cpus))
        log.write_text("no load in this test")
        yield from ()

    monkeypatch.setattr(target, "COUNTED_WITHIN_SECONDS", 0.0)
    monkeypatch.setattr(sweep, "off_cores", section("off cores"))
    monkeypatch.setattr(sweep, "watched", section("clocks"))
    monkeypatch.setattr(sweep, "run_load_generator", generator)
    with service.fake_service(service.Script()) as url:
        run_sweep(url, PLAN, tmp_path, console=Console(file=io.StringIO()), exporter_port=0)
    assert entered == [("off cores", [7]), ("clocks", []), ("generator", [7])]


def test_a_part_that_was_killed_in_its_warm_up_does_not_unsettle_the_others(tmp_path: Path) -> None:
    run = read_run(make_results(tmp_path, plan=PLAN))
    run.ended, run.parts = None, [Part(number=number, started="") for number in (1, 2, 3)]
    for number, settled in ((1, True), (2, False), (3, True)):
        with EventWriter(tmp_path, number) as kept:
            kept.write(WarmupPassEnded(number, settled, settled, f"part {number}"))
            if settled:
                kept.write(MeasuringBegan({}, None))
    rows = [row for row in read_rows(tmp_path) if row.stage == "measure"]
    path = tmp_path / "requests.jsonl"
    text = path.read_text().splitlines()
    path.write_text("\n".join(text[:-3] + [line.replace("{", '{"part":3,', 1) for line in text[-3:]]) + "\n")
    recover(tmp_path, run, Finished(each_row(tmp_path)))
    assert (run.client.warmup_passes, run.client.warmup_settled) == (3, True)
    assert len(run.order) == len({row.round for row in rows})
