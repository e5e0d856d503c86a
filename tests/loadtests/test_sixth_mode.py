"""A row added to the ladder of modes reaches plans, reports and locust without any other change."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dashboards.theme import MODE_COLOURS
from loadtests.plan.presets import PRESETS, describe, make_plan
from loadtests.report.formatting import colour
from loadtests.report.report_files import make_report
from service.modes import MODES, Effect, Mode, default_modes
from tests.support.fake_service import STEP_SECONDS
from tests.support.made_results import CLEAR, make_results

ROOT = Path(__file__).parents[2]
SIXTH = "sixth-mode"


@pytest.fixture
def six_modes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the ladder with a sixth row."""
    row = Mode(SIXTH, "inference_mode", "launches, without fusion", cuda=Effect(SIXTH), cpu=Effect(SIXTH))
    monkeypatch.setitem(MODES, SIXTH, row)
    monkeypatch.setitem(STEP_SECONDS, SIXTH, (0.0004, 0.0005))
    return default_modes()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_plan_has_cells_of_every_row_of_the_table(six_modes: list[str], preset: str) -> None:
    plan = make_plan(preset)
    assert plan.modes == six_modes
    assert f"{SIXTH} b={plan.batch_sizes[0]} " in describe(plan)


def test_a_report_compares_and_ships_it_in_a_colour_of_its_own(six_modes: list[str], tmp_path: Path) -> None:
    headline = make_report(make_results(tmp_path, CLEAR | {SIXTH: 0.2}))
    assert {batch["ship"] for batch in headline["batches"]} == {SIXTH}
    page = (tmp_path / "report.html").read_text()
    assert colour(SIXTH) not in MODE_COLOURS.values()
    assert re.search(rf'style="--mode: {colour(SIXTH)}"', page)
    assert f'"name": "{SIXTH}"' in page


def test_locust_offers_it_and_names_it_where_no_mode_is_chosen() -> None:
    # A process of its own, because locust replaces parts of the standard library.
    code = f"""
from locust.argument_parser import LocustArgumentParser
from service.modes import MODES
MODES["{SIXTH}"] = MODES["eager"]
from loadtests.locustfile import add_options, load_of
parser = LocustArgumentParser()
add_options(parser)
print(",".join(load_of(parser.parse_args([])).modes))
try:
    load_of(parser.parse_args(["--modes", ","]))
except ValueError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    chosen, refusal = done.stdout.splitlines()[-2:]
    assert chosen.split(",") == [*default_modes(), SIXTH]
    assert refusal.endswith(f"give one or more of {','.join([*MODES, SIXTH])}")
