"""A fleet's report: which machine and which mode, what is not apart, and what is not there."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import launchbound
from loadtests.fleet.node import installed_code
from loadtests.fleet.plan import Fleet, FleetTask, Try, write_fleet
from loadtests.fleet.report import CSV_FILE, PAGE_FILE, make_fleet_report
from loadtests.plan.presets import make_plan
from loadtests.run.rows import RowsError
from tests.support.made_results import CLEAR, make_results

PLAN = make_plan("quick", 1, ["eager", "inference_mode", "compiled"], [1, 4])
TWICE = {mode: 0.5 * value for mode, value in CLEAR.items()}


def task(
    machine: str, *, model: str = "tiny", price: float | None = None, state: Any = "complete"
) -> FleetTask:
    attempt = Try(node="n", address=machine, started="", sweep_seconds=60.0, control_seconds=1.25, niceness=0)
    return FleetTask(
        name=f"{machine}-{model}",
        machine=machine,
        device="cpu",
        dtype="float32",
        model=model,
        price=price,
        state=state,
        tries=[attempt],
    )


def fleet_in(folder: Path, *tasks: FleetTask) -> Path:
    write_fleet(
        folder, Fleet(name="which", started="", plan="", sweep="", code=installed_code(), tasks=list(tasks))
    )
    return folder


def results_of(folder: Path, one: FleetTask, relative: dict[str, float], **options: Any) -> None:
    make_results(folder / one.name, relative, plan=PLAN, **options)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A machine twice as fast and ten times as dear as the other, and one that could not run."""
    folder = tmp_path_factory.mktemp("fleet")
    slow, fast, gone = task("slow", price=1.0), task("fast", price=10.0), task("gone", state="lost")
    gone.said = "its node died"
    results_of(folder, slow, CLEAR, seed=3)
    results_of(folder, fast, TWICE, seed=4)
    return folder, make_fleet_report(fleet_in(folder, slow, fast, gone))


def test_the_first_sentence_says_which_machine_and_which_mode_after_what_is_not_there(
    two: tuple[Path, dict[str, Any]],
) -> None:
    _, found = two
    assert found["headline"] == (
        "NOT MEASURED: gone-tiny. Most tokens per second: B (fast) with compiled at batch 1 and batch 4. "
        "Most tokens per dollar: A (slow) with compiled at batch 1 and batch 4."
    )
    assert len(found["rows"]) == 4
    for row in found["rows"]:
        for end in ("", "_low", "_high"):
            hour = 3600 * row[f"tokens_per_second{end}"]
            assert row[f"tokens_per_dollar{end}"] == pytest.approx(hour / row["price_dollars_per_hour"])


def test_page_markdown_and_csv_have_the_same_numbers_states_and_control_plane_time(
    two: tuple[Path, dict[str, Any]],
) -> None:
    folder, found = two
    page, text = ((folder / name).read_text() for name in (PAGE_FILE, "fleet.md"))
    for shown in (found["headline"], "its node died", "1.25 s", "slow-tiny"):
        assert shown in page
        assert shown in text
    assert "src=" not in page.partition("<main>")[0]
    with (folder / CSV_FILE).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["task"] for row in rows] == [row["task"] for row in found["rows"]]
    assert [float(row["latency_seconds"]) for row in rows] == [
        row["latency_seconds"] for row in found["rows"]
    ]


def test_a_machine_whose_name_is_a_formula_is_a_text_in_the_csv_file(tmp_path: Path) -> None:
    evil = task("evil")
    results_of(tmp_path, evil, CLEAR)
    evil.machine = '=HYPERLINK("http://stranger.example")'
    make_fleet_report(fleet_in(tmp_path, evil))
    with (tmp_path / CSV_FILE).open() as file:
        rows = list(csv.DictReader(file))
    assert {row["machine"] for row in rows} == {f"'{evil.machine}"}
    assert all(float(row["latency_seconds"]) > 0 for row in rows)


@pytest.mark.parametrize("faster", [1.0, 1.15])
def test_machines_that_differ_by_less_than_sweeps_of_one_scatter_are_not_called_apart(
    tmp_path: Path, faster: float
) -> None:
    one, other = task("one"), task("other")
    results_of(tmp_path, one, CLEAR, seed=3)
    results_of(tmp_path, other, {mode: value / faster for mode, value in CLEAR.items()}, seed=4)
    found = make_fleet_report(fleet_in(tmp_path, one, other))
    assert found["headline"] == "The machines are not told apart in tokens per second at batch 1 and batch 4."
    assert "per dollar" not in found["headline"]
    assert "no price in the plan" in (tmp_path / "fleet.md").read_text()


def test_a_machine_whose_sweep_is_not_valid_is_said_first_and_wins_nothing(tmp_path: Path) -> None:
    bad, good = task("bad", state="not valid"), task("good")
    results_of(tmp_path, bad, TWICE, fail=1)
    results_of(tmp_path, good, CLEAR)
    found = make_fleet_report(fleet_in(tmp_path, bad, good))
    assert found["headline"].startswith("NOT VALID: A (bad). One machine alone: B (good) with compiled at ")
    assert {row["valid"] for row in found["rows"] if row["task"] == bad.name} == {False}
    done = CliRunner().invoke(launchbound.app, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert found["headline"] in done.stdout


def test_models_are_not_compared_with_each_other(tmp_path: Path) -> None:
    tiny, small = task("m", model="tiny"), task("m", model="small")
    results_of(tmp_path, tiny, TWICE)
    results_of(tmp_path, small, CLEAR)
    found = make_fleet_report(fleet_in(tmp_path, tiny, small))
    assert "tiny: One machine alone: A (m, tiny) with compiled" in found["headline"]
    assert "small: One machine alone: B (m, small) with compiled" in found["headline"]
    assert "Most tokens" not in found["headline"]


def test_what_is_left_out_is_said_and_makes_no_fleet_invalid(tmp_path: Path) -> None:
    good, none = task("good"), task("none", state="left out")
    none.said = "no node of kind none offers a GPU to Ray"
    results_of(tmp_path, good, CLEAR)
    done = CliRunner().invoke(launchbound.app, ["report", str(fleet_in(tmp_path, good, none))])
    assert done.exit_code == 0
    assert "NOT MEASURED" not in done.stdout
    assert none.said in (tmp_path / PAGE_FILE).read_text()


def test_a_fleet_of_which_nothing_is_measured_says_what_its_tasks_said(tmp_path: Path) -> None:
    gone = task("gone", state="failed")
    gone.said = "no such model"
    with pytest.raises(RowsError, match="gone-tiny: failed; no such model"):
        make_fleet_report(fleet_in(tmp_path, gone))
