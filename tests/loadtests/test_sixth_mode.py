"""A row added to the ladder of modes reaches plans, reports and locust without any other change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dashboards.theme import MODE_COLOURS
from loadtests.plan.presets import PRESETS, describe, make_plan
from loadtests.report.formatting import colour
from loadtests.report.report_files import make_report
from service.modes import MODES, Effect, Mode, default_modes
from tests.support.fake_service import STEP_SECONDS
from tests.support.made_results import CLEAR, make_results

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
