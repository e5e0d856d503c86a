"""Sweeps of one build on one page: whether their answers agree, and what they say together."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import launchbound
from loadtests.plan.cells import Group, Plan
from loadtests.plan.presets import make_plan
from loadtests.side_by_side.entry import read_entries
from loadtests.side_by_side.files import make_picture
from loadtests.side_by_side.repeats import Repeats, repeats_of
from loadtests.side_by_side.view import groups
from tests.support.made_evidence import edit_run
from tests.support.made_results import CLEAR, make_results

pytestmark = pytest.mark.slow

MODES = ["eager", "inference_mode", "compiled"]
PLAN = make_plan("quick", 1, MODES, [1, 4])
OTHERWISE = CLEAR | {"inference_mode": 0.4, "compiled": 0.7}
TIED = CLEAR | {"inference_mode": 0.4}


def swept(root: Path, *speeds: Mapping[str, float], plan: Plan = PLAN) -> list[Path]:
    folders = [root / f"seed-{number}" for number in range(len(speeds))]
    for number, (folder, relative) in enumerate(zip(folders, speeds, strict=True)):
        folder.mkdir(parents=True)
        make_results(folder, relative, plan=plan, seed=number)
    return folders


def found_in(folders: list[Path]) -> Repeats:
    entries = read_entries(folders)
    found = repeats_of(entries, groups(entries))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five sweeps, in one of which two modes tie."""
    return swept(tmp_path_factory.mktemp("alike"), CLEAR, CLEAR, TIED, CLEAR, CLEAR)


@pytest.fixture(scope="module")
def picture(alike: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of the picture, and its document."""
    out = tmp_path_factory.mktemp("picture")
    return out, make_picture(alike, out)


def test_sweeps_that_agree_are_said_to_and_not_asked_which_is_fastest(
    picture: tuple[Path, dict[str, Any]],
) -> None:
    out, found = picture
    answer = "compiled in 5 of 5 at batch 1 and batch 4"
    assert found["headline"] == f"5 sweeps of one build agree, alone or in a tie: {answer}."
    page, text = (out / "runs.html").read_text(), (out / "runs.md").read_text()
    assert "Who wins where" not in page
    assert "Lowest latency" not in page + text
    assert page.count("compiled is in 5 of 5 answers, alone in 4.") == 2
    assert text.count("| C (seed-2) | inference_mode = compiled |") == 2
    assert json.loads((out / "runs.json").read_text())["repeats"] == found["repeats"]


def test_one_sweep_of_five_may_say_otherwise_and_two_may_not(tmp_path: Path) -> None:
    four = make_picture(swept(tmp_path / "4", CLEAR, OTHERWISE, CLEAR, CLEAR, CLEAR), tmp_path / "four")
    assert four["headline"].startswith("5 sweeps of one build agree, alone or in a tie: compiled in 4 of 5")
    two = swept(tmp_path / "3", CLEAR, OTHERWISE, CLEAR, OTHERWISE, CLEAR)
    three = make_picture(two, tmp_path / "three")
    places = "batch 1 and batch 4"
    assert three["headline"] == f"The answer does not replicate at {places}: no mode is in more than 3 of 5."
    assert [group["replicates"] for group in three["repeats"]["groups"]] == [False, False]
    page = (tmp_path / "three" / "runs.html").read_text()
    assert page.count("compiled is in 3 of 5 answers, alone in 3: the answer does not replicate.") == 2


def test_a_gain_over_all_sweeps_is_the_mean_of_their_own(alike: list[Path]) -> None:
    """Each as its own report has it; their rounds are not thrown together."""
    for group in found_in(alike).groups:
        own = [one.comparison.speedup.value for v in group.verdicts if (one := v.of("compiled")).comparison]
        assert len(own) == 5
        expected = math.exp(fmean(map(math.log, own)))
        assert group.gains["compiled"].ratio.value == pytest.approx(expected)
        assert group.gains["compiled"].ratio.samples == 5
        assert group.gains.keys() == {"inference_mode", "compiled"}


def test_what_ties_in_a_sweep_is_compared_over_all_of_them(alike: list[Path]) -> None:
    for group in found_in(alike).groups:
        assert group.named == "compiled"
        ratio = group.over_named["inference_mode"].ratio
        assert ratio.value == pytest.approx((0.4 / 0.7) ** (4 / 5), rel=0.02)
        assert group.over_named.keys() == {"inference_mode"}


def test_sweeps_that_scatter_beyond_their_rounds_are_marked(tmp_path: Path) -> None:
    slower = CLEAR | {"compiled": 0.44}
    folders = swept(tmp_path, CLEAR, slower, CLEAR, slower)
    gains = [group.gains for group in found_in(folders).groups]
    assert all(gain["compiled"].chance is not None and gain["compiled"].chance < 1e-4 for gain in gains)
    make_picture(folders, tmp_path / "out")
    rows = [line for line in (tmp_path / "out" / "runs.md").read_text().splitlines() if " %" in line]
    marked = [line for line in rows if "beyond their rounds (p < 0.0001)" in line]
    assert [line.startswith("| compiled |") for line in marked] == [True, True]


def test_the_index_over_sweeps_is_the_mean_of_theirs(alike: list[Path]) -> None:
    for group in found_in(alike).groups:
        own = [decode.index for decode in group.decodes if decode.index is not None]
        assert group.index is not None
        assert group.index.value == pytest.approx(fmean(own))
        assert group.index.samples == 5


@pytest.mark.parametrize(
    ("place", "fact", "other"),
    [
        ("environment", "commit", "fedcba9876543210"),
        ("environment", "cpu", "another CPU"),
        ("environment", "governor", "powersave"),
        ("engine", "dtype", "bfloat16"),
    ],
)
def test_runs_of_something_else_are_no_repeats(tmp_path: Path, place: str, fact: str, other: str) -> None:
    folders = swept(tmp_path, CLEAR, CLEAR)
    edit_run(folders[1], lambda run: getattr(run, place).update({fact: other}))
    entries = read_entries(folders)
    assert repeats_of(entries, groups(entries)) is None
    found = make_picture(folders, tmp_path / "out")
    assert found["repeats"] is None
    assert found["headline"].startswith("The runs are not told apart")


def test_a_group_that_one_sweep_lacks_is_left_out(tmp_path: Path) -> None:
    larger = swept(tmp_path / "larger", CLEAR)
    folders = [*larger, *swept(tmp_path / "smaller", CLEAR, plan=make_plan("quick", 1, MODES, [1]))]
    sizes: list[Group] = [one.group for one in found_in(folders).groups]
    assert [group[0] for group in sizes] == [1]


def test_a_mode_that_one_sweep_lacks_has_no_gain_over_all_of_them(tmp_path: Path) -> None:
    fewer = make_plan("quick", 1, ["eager", "compiled"], [1, 4])
    folders = [*swept(tmp_path / "all", TIED, TIED), *swept(tmp_path / "fewer", CLEAR, plan=fewer)]
    for group in found_in(folders).groups:
        assert group.gains.keys() == {"compiled"}
        assert group.over_named.keys() == set()
        assert group.answers[0] == ("inference_mode", "compiled")


def test_one_sweep_is_no_repeat(tmp_path: Path) -> None:
    entries = read_entries(swept(tmp_path, CLEAR))
    assert repeats_of(entries, groups(entries)) is None


def test_too_few_rounds_decide_nothing(tmp_path: Path) -> None:
    few = msgspec.structs.replace(PLAN, rounds=5, rounds_most=None)
    found = make_picture(swept(tmp_path, CLEAR, CLEAR, plan=few), tmp_path / "out")
    assert "fewer than 8 rounds decide nothing" in found["headline"]
    assert [group["named"] for group in found["repeats"]["groups"]] == [None, None]


def test_a_sweep_that_is_not_valid_is_said_first(alike: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    make_results(bad, plan=PLAN, fail=1)
    done = CliRunner().invoke(
        launchbound.app, ["report", str(alike[0]), str(bad), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 1
    assert done.stdout.startswith("NOT VALID: B (bad). 2 sweeps of one build agree")
