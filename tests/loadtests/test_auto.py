"""`auto` in a sweep: measured beside the modes, counted as the one that ran, and never a mode to choose."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

import launchbound
from loadtests.compare.builds import compare_builds
from loadtests.plan.cells import Cell, Plan
from loadtests.plan.plan_file import parse_plan, plan_of, toml_of
from loadtests.plan.presets import PRESETS, make_plan, overridden, preset_document
from loadtests.report.findings import Findings
from loadtests.report.formatting import colour
from loadtests.report.report_files import make_report
from loadtests.report.results import read_results
from loadtests.report.surroundings import reproduce
from loadtests.run.gates import Gate
from loadtests.run.resumption import CannotResume, refuse_other_service
from loadtests.run.rows import RequestRow, read_rows
from loadtests.run.run_file import SweepRun, read_run
from loadtests.run.sweep import run_sweep
from loadtests.run.target import Target, TargetError, wait_until_ready
from service.cli.options import EXIT_BAD_INPUT
from service.front.settings import read_advice
from service.modes import AUTO, MODES
from tests.support.fake_service import Script, auto_status, engine_status, fake_service, mode_status
from tests.support.made_results import CLEAR, make_results, scrape_text
from tests.support.sweeping import validate

PLAN = make_plan("quick", 1, ["eager", "inference_mode", "compiled", AUTO], [1, 4])
CELL = "auto b=1 short n=32 c=1"
COUNTS = "client rows = server's count"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reported sweep in which `auto` ran `compiled`, the fastest mode, at every batch size."""
    folder = make_results(tmp_path_factory.mktemp("auto"), plan=PLAN)
    make_report(folder)
    return folder


def gate(name: str, run: SweepRun, rows: list[RequestRow], counted: dict[str, int] | None = None) -> Gate:
    after = None if counted is None else scrape_text(counted)
    found = validate(run, rows, None if counted is None else scrape_text({}), after)
    return next(one for one in found if one.name == name)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_plan_with_auto_has_its_cells_and_comes_back_from_its_file(preset: str) -> None:
    document = overridden(preset_document(preset), modes=["eager", "compiled", AUTO])
    plan = plan_of(document)
    assert (plan.modes, plan.ladder_modes) == (["eager", "compiled", AUTO], ["eager", "compiled"])
    assert plan_of(parse_plan(toml_of(document))) == plan
    assert colour(AUTO) not in map(colour, MODES)
    controls = [cell for cell in plan.cells if cell.control]
    assert not [cell for cell in controls if cell.mode == AUTO]


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_sweep_keeps_what_ran_and_its_gates_hold(tmp_path: Path) -> None:
    cells = [Cell(mode=mode, batch_size=1, new_tokens=4, requests=2) for mode in ("eager", "compiled", AUTO)]
    plan = Plan(preset="own", seed=5, rounds=8, cells=tuple(cells))
    script = Script(auto_runs="reduce-overhead")
    with fake_service(script) as url:
        result = run_sweep(url, plan, tmp_path, console=Console(file=io.StringIO()), exporter_port=0)
    assert {one.name for one in result.failed} <= {"client CPU < 80%"}
    rows = read_rows(tmp_path)
    picked = Counter((row.mode, row.picked_mode, row.effective_mode) for row in rows)
    assert set(picked) == {
        ("eager", None, "eager"),
        ("compiled", None, "compiled"),
        (AUTO, "reduce-overhead", "compiled-cpp"),
    }
    assert script.ran["reduce-overhead"] == sum(row.mode == AUTO for row in rows)
    assert read_run(tmp_path).auto == auto_status("reduce-overhead")
    fallbacks = next(one for one in result.gates if one.name == "fallbacks")
    assert fallbacks.passed


def test_a_service_without_auto_is_refused_before_anything_is_measured() -> None:
    class Old(Target):
        def modes(self) -> dict[str, Any]:
            modes = [mode_status(mode, "ready") for mode in CLEAR]
            return {"modes": modes, "engine": engine_status(), "service": {}}

    with pytest.raises(TargetError, match="is of a version without `auto`"):
        wait_until_ready(Old("http://127.0.0.1:1"), PLAN, lambda _: None)


def test_a_sweep_is_not_resumed_where_something_else_is_advised(made: Path) -> None:
    run = read_run(made)
    document = {"engine": run.engine, "service": run.environment, "auto": auto_status("compiled")}
    refuse_other_service(made, run, document, scrape_text({}))
    with pytest.raises(CannotResume, match="auto at batch bucket 1 was compiled, and is eager now"):
        refuse_other_service(made, run, document | {"auto": auto_status("eager")}, scrape_text({}))


def test_its_rows_count_as_the_mode_that_ran(made: Path) -> None:
    run, rows = read_run(made), read_rows(made)
    counted = Counter(row.ran_mode for row in rows)
    assert AUTO not in counted
    assert gate(COUNTS, run, rows, counted).passed
    as_eager = {"picked_mode": "eager", "effective_mode": "eager"}
    other = [msgspec.structs.replace(row, **as_eager) if row.picked_mode else row for row in rows]
    found = gate(COUNTS, run, other, counted)
    assert found.failed
    assert "eager: " in found.detail


def test_a_refused_request_may_be_counted_under_any_mode_but_must_be_counted(made: Path) -> None:
    run, rows = read_run(made), read_rows(made)
    counted = Counter(row.ran_mode for row in rows)
    place = next(place for place, row in enumerate(rows) if row.mode == AUTO)
    rows[place] = msgspec.structs.replace(rows[place], picked_mode=None, status=429, error="full")
    assert gate(COUNTS, run, rows, counted).passed
    elsewhere = counted + Counter(eager=1) - Counter(compiled=1)
    assert gate(COUNTS, run, rows, elsewhere).passed
    for wrong in (counted - Counter(compiled=1), counted + Counter(eager=1)):
        found = gate(COUNTS, run, rows, wrong)
        assert found.failed
        assert "auto: 1 rows without the mode that it picked" in found.detail


def test_a_fallback_is_one_of_the_mode_that_was_picked(made: Path) -> None:
    run, rows = read_run(made), read_rows(made)
    assert gate("fallbacks", run, rows).passed
    fell = [msgspec.structs.replace(row, effective_mode="eager") if row.picked_mode else row for row in rows]
    found = gate("fallbacks", run, fell)
    assert not found.passed
    assert "× compiled ran as eager" in found.detail


def test_parity_is_asked_of_every_mode_that_it_can_run(made: Path) -> None:
    run = read_run(made)
    assert gate("parity", run, []).passed
    modes = [mode_status(mode, "ready", mode != "no_grad") for mode in CLEAR]
    out = msgspec.structs.replace(run, modes=modes)
    found = gate("parity", out, [])
    assert found.failed
    assert "out of parity: no_grad" in found.detail
    cells = tuple(cell for cell in PLAN.cells if cell.mode != AUTO)
    without = msgspec.structs.replace(out, plan=msgspec.structs.replace(PLAN, cells=cells))
    assert gate("parity", without, []).passed


@pytest.mark.parametrize("auto_runs", ["compiled", "eager"])
def test_it_is_never_shipped_equivalent_or_paid_back(tmp_path: Path, auto_runs: str) -> None:
    plan = make_plan("quick", 1, ["eager", "inference_mode", AUTO], [1])
    headline = make_report(make_results(tmp_path, plan=plan, auto_runs=auto_runs))
    (batch,) = headline["batches"]
    assert (batch["ship"], batch["fastest"], batch["equivalent"]) == ("inference_mode", "inference_mode", [])
    assert not re.search(rf"(?<!-){AUTO}(?!-)", headline["text"])
    findings = Findings(read_results(tmp_path))
    own = findings.main[0].of(AUTO)
    assert own.payback.requests == "nothing to pay back"


def test_the_command_that_measures_again_names_auto_and_the_advice(made: Path) -> None:
    run = read_run(made)
    run.settings = {"modes": "eager,inference_mode,compiled", "batch_sizes": "1,4", "advice": "results/a"}
    command = reproduce(run)[-1]
    assert "--modes eager,inference_mode,compiled,auto " in command
    assert command.endswith("--advice results/a")


def test_a_service_reads_what_the_report_has_chosen_and_the_modes_that_ran_are_shown(made: Path) -> None:
    assert len(re.findall(r"^\| auto; ran compiled 100 % \|", (made / "report.md").read_text(), re.M)) == 4
    found = read_advice(made)
    assert [(one.batch_size, one.mode) for one in found.batches] == [(1, "compiled"), (4, "compiled")]
    assert found.batches[0].reason.endswith("× the speed of inference_mode")
    assert (found.model, found.model_hash, found.device_name) == ("tiny", "0123456789ab", "a CPU")
    document = json.loads((made / "advice.json").read_text())
    speedup = document["batches"][0]["speedup"]
    assert (speedup["vs"], document["commit"]) == ("inference_mode", read_run(made).environment["commit"])
    assert document["batches"][0]["state"] == "faster"
    assert document["left_out"] == ["no_grad", "reduce-overhead", "max-autotune", "aot-inductor"]
    assert speedup["low"] < speedup["ratio"] < speedup["high"]


def test_an_invalid_sweep_is_refused_and_a_batch_size_that_was_not_decided_absent(tmp_path: Path) -> None:
    make_report(make_results(tmp_path / "invalid", plan=PLAN, fail=1))
    with pytest.raises(ValueError, match="is not valid"):
        read_advice(tmp_path / "invalid")
    few = msgspec.structs.replace(PLAN, rounds=5, rounds_most=None)
    make_report(make_results(tmp_path / "few", plan=few))
    assert json.loads((tmp_path / "few" / "advice.json").read_text())["batches"] == []


def test_two_builds_are_not_compared_by_what_they_were_advised(made: Path, tmp_path: Path) -> None:
    make_results(tmp_path, plan=PLAN, auto_runs="eager", seed=3)
    found = compare_builds(made, tmp_path)
    assert AUTO not in {one.mode for one in found.cells}
    assert "what each sweep was advised" in found.left_out[CELL]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--advice", "nowhere"], "nowhere is no folder: name the one that a sweep wrote"),
        (["--advice", "nowhere", "--url", "http://127.0.0.1:1"], "belong to the service"),
        (["--advice", "nowhere", "--resume", "nowhere"], "leave out all but"),
    ],
)
def test_advice_that_cannot_be_followed_is_refused_before_a_service_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], remedy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(launchbound.app, ["sweep", "--modes", "eager,auto", *options])
    assert done.exit_code == EXIT_BAD_INPUT
    assert remedy in done.stderr
    assert not list(tmp_path.iterdir())
