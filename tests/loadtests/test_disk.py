"""A disk that is full: exit code 4, and the command that comes next, whatever was being written."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import launchbound
from loadtests.plan.presets import make_plan
from service.cli.options import EXIT_MACHINE
from tests.support.made_results import make_results

PLAN = make_plan("quick", 1, ["eager", "compiled"], [1])


def made(folder: Path, *, complete: bool = True, seed: int = 11) -> Path:
    folder.mkdir()
    return make_results(folder, plan=PLAN, complete=complete, seed=seed)


@pytest.mark.parametrize("name", ["cells.csv", "summary.csv", "report.html"])
def test_a_report_that_finds_no_space_names_itself_where_the_sweep_is_complete(
    name: str, tmp_path: Path
) -> None:
    folder = made(tmp_path / "run")
    (folder / name).symlink_to("/dev/full")
    done = CliRunner().invoke(launchbound.app, ["report", str(folder)])
    assert done.exit_code == EXIT_MACHINE
    assert f"then make the report with `launchbound report {folder}`" in done.stderr


def test_a_report_of_an_incomplete_sweep_that_finds_no_space_names_resume(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", complete=False)
    (folder / "report.md").symlink_to("/dev/full")
    done = CliRunner().invoke(launchbound.app, ["report", str(folder)])
    assert done.exit_code == EXIT_MACHINE
    assert f"then go on with `launchbound sweep --resume {folder}`" in done.stderr


def test_a_page_of_several_runs_that_finds_no_space_ends_with_3_too(tmp_path: Path) -> None:
    folders = [made(tmp_path / "one"), made(tmp_path / "two", seed=12)]
    out = tmp_path / "out"
    out.mkdir()
    (out / "runs.html").symlink_to("/dev/full")
    done = CliRunner().invoke(launchbound.app, ["report", *map(str, folders), "--out", str(out)])
    assert done.exit_code == EXIT_MACHINE
    assert f"no space left for {out}" in done.stderr
    assert "run the same command again" in done.stderr
