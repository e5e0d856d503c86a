"""A mode that on this device runs as another one is not measured twice, and the report says so."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import launchbound
from loadtests.plan.plan_file import toml_of
from loadtests.plan.presets import make_plan
from loadtests.report.results import read_results
from loadtests.report.surroundings import environment
from loadtests.run.target import without_doubles
from service.cli.sweep_plan import chosen_plan
from tests.support.fake_service import STEP_SECONDS, engine_status, mode_status
from tests.support.made_results import edit_run, make_results

MODES = ["eager", "inference_mode", "cuda-graph"]


def document(device: str) -> dict[str, object]:
    return {"engine": engine_status() | {"device": device}, "modes": []}


def test_a_double_leaves_the_plan_with_a_line() -> None:
    lines: list[str] = []
    plan = make_plan("quick", 1, modes=MODES)
    left = without_doubles(document("cpu"), plan, lines.append)
    assert left.modes == ["eager", "inference_mode"]
    assert [cell for cell in plan.cells if cell.mode != "cuda-graph"] == list(left.cells)
    assert lines == ["cuda-graph is left out: on this device it runs as inference_mode, which is measured"]


@pytest.mark.parametrize(
    ("device", "modes"),
    [("cuda", MODES), ("cpu", ["eager", "cuda-graph"]), ("cpu", ["eager", "inference_mode"])],
)
def test_where_nothing_would_be_measured_twice_the_plan_stays(device: str, modes: list[str]) -> None:
    lines: list[str] = []
    plan = make_plan("quick", 1, modes=modes)
    assert without_doubles(document(device), plan, lines.append) == plan
    assert lines == []


def test_a_sweep_without_its_doubles_is_gone_on_with_by_its_own_plan_file(tmp_path: Path) -> None:
    chosen = chosen_plan(None, "quick", 1, ",".join(MODES), "1")
    make_results(tmp_path, plan=without_doubles(document("cpu"), chosen.plan, lambda _: None))
    for modes, refusal in ((MODES, "before sweeps could be resumed"), (MODES[:1], "has another plan")):
        named = msgspec.structs.replace(chosen.document, modes=modes)
        (tmp_path / "plan.toml").write_text(toml_of(named))
        options = ["--resume", str(tmp_path), "--plan", str(tmp_path / "plan.toml")]
        done = CliRunner().invoke(launchbound.app, ["sweep", *options])
        assert refusal in done.stderr


def test_the_report_names_what_was_served_and_left_out_with_the_reason(tmp_path: Path) -> None:
    make_results(tmp_path, dict.fromkeys(STEP_SECONDS, 1.0))
    names = {"mode": "cuda-graph", "effective": "inference_mode", "reason": "a CPU has none"}
    doubled = mode_status("inference_mode", "ready") | names
    edit_run(tmp_path, lambda run: run.modes.append(doubled))
    rows = [text for label, text in environment(read_results(tmp_path)) if label == "left out"]
    assert rows == ["cuda-graph, which runs as inference_mode here: a CPU has none"]
