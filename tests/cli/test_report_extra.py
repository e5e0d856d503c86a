"""Commands where the packages of the extra `report` are not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.made_plans import make_plan
from tests.support.made_results import make_results

PROGRAM = "import sys; sys.modules['polars'] = None; "
COMMAND = PROGRAM + "import launchbound; launchbound.app()"
CONCLUDE = PROGRAM + (
    "from pathlib import Path\nfrom rich.console import Console\n"
    "from loadtests.run.sweep import SweepResult\nfrom loadtests.run.run_file import read_run\n"
    "from service.cli.sweep import _reported\nfolder = Path(sys.argv[1])\n"
    "raise SystemExit(_reported(folder, Console(), SweepResult(folder, read_run(folder), ())))"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_results(tmp_path, plan=make_plan("quick", 1, ["eager", "compiled"], [1]))


def without_polars(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("verb", "count"), [("compare", 2), ("report", 1)])
def test_what_needs_them_is_bad_input_and_names_the_extra(verb: str, count: int, folder: Path) -> None:
    done = without_polars(COMMAND, verb, *[str(folder)] * count)
    assert done.returncode == 2, done.stderr
    assert "polars is not installed here: run `pip install -e '.[report]'`" in done.stderr
    assert done.stdout == ""


def test_a_sweep_keeps_its_exit_code_and_leaves_the_report_for_later(folder: Path) -> None:
    done = without_polars(CONCLUDE, str(folder))
    assert done.returncode == 0, done.stderr
    assert "run `pip install -e '.[report]'`" in done.stdout
    assert f"made later by `launchbound report {folder}`" in done.stdout
    last = json.loads(done.stdout.splitlines()[-1])
    assert last == {"path": str(folder), "headline": None, "valid": True}
