"""What precision buys: runs that differ in it beside each other, by ratios that no round pairs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from loadtests.plan.cells import Plan
from loadtests.plan.dtypes import DTYPES
from loadtests.plan.presets import make_plan
from loadtests.run.rows import ROWS_FILE
from loadtests.side_by_side.entry import read_entries
from loadtests.side_by_side.files import make_picture
from loadtests.side_by_side.precisions import precisions_of, reference_of
from loadtests.side_by_side.view import groups
from service.statistics.builds import LATENCY_SCATTER, difference
from service.step.precision import PRECISIONS
from tests.support.made_evidence import edit_run
from tests.support.made_results import CLEAR, make_results

pytestmark = pytest.mark.slow

PLAN = make_plan("quick", 1, ["eager", "inference_mode"], [1, 4])
QUARTER = {mode: 0.25 * value for mode, value in CLEAR.items()}


def made(root: Path, dtype: str, relative: dict[str, float], plan: Plan = PLAN) -> Path:
    """A run in `dtype`, whose requests wrote one of two texts by turns; in bfloat16 a third, each time."""
    folder = root / dtype
    folder.mkdir(parents=True)
    make_results(folder, relative, plan=plan, seed=len(dtype))
    edit_run(folder, lambda run: run.engine.update(dtype=dtype))
    seen: dict[tuple[str, int], int] = {}
    lines = []
    for line in (folder / ROWS_FILE).read_text().splitlines():
        row = json.loads(line)
        place = (row["cell"], row["round"])
        seen[place] = seen.get(place, -1) + 1
        text = "other" if dtype == "bfloat16" and seen[place] == 0 else f"text {seen[place]}"
        lines.append(json.dumps(row | {"index": seen[place], "text_digest": text}) + "\n")
    (folder / ROWS_FILE).write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """bfloat16 in a quarter of float32's time, and autocast as fast as float32."""
    root = tmp_path_factory.mktemp("precisions")
    speeds = {"bfloat16": QUARTER, "float32": CLEAR, "autocast-bfloat16": CLEAR}
    return [made(root, dtype, relative) for dtype, relative in speeds.items()]


@pytest.fixture(scope="module")
def picture(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("picture")
    return out, make_picture(folders, out)


def test_the_plans_precisions_are_those_of_the_service() -> None:
    assert set(DTYPES) == set(PRECISIONS)


def test_float32_is_the_reference_wherever_it_stands(folders: list[Path]) -> None:
    entries = read_entries(folders)
    reference = reference_of(entries)
    assert reference is not None
    assert reference.facts["dtype"] == "float32"
    found = precisions_of(entries, groups(entries))
    assert found is not None
    assert found.reference is reference


def test_a_ratio_is_the_references_latency_over_that_of_the_same_mode(
    picture: tuple[Path, dict[str, Any]],
) -> None:
    for group in picture[1]["precision"]["groups"]:
        for row in group["modes"]:
            bfloat16, float32, autocast = row["runs"]
            assert bfloat16["speedup"]["value"] == pytest.approx(4, rel=0.05)
            assert bfloat16["word"] == "faster"
            assert float32["speedup"] is None
            assert autocast["speedup"]["low"] < 1 < autocast["speedup"]["high"]
            assert autocast["word"] == "no detectable difference"


def test_intervals_allow_for_what_sweeps_scatter_and_those_over_rounds_alone_do_not(
    picture: tuple[Path, dict[str, Any]], folders: list[Path]
) -> None:
    entries = read_entries(folders)
    (group,) = (one for one in picture[1]["precision"]["groups"] if one["batch_size"] == 1)
    run = next(row for row in group["modes"] if row["mode"] == "eager")["runs"][0]
    cell = next(cell for cell in PLAN.cells if cell.mode == "eager" and cell.batch_size == 1)
    sides = [list(entries[place].findings.results.medians(cell.name).values()) for place in (0, 1)]
    expected = difference([sides[0]], [sides[1]], LATENCY_SCATTER).interval()
    assert run["speedup"]["low"] == pytest.approx(expected.low)
    assert run["speedup"]["high"] == pytest.approx(expected.high)
    over = run["speedup_over_rounds"]
    assert run["speedup"]["low"] < over["low"] < over["high"] < run["speedup"]["high"]


def test_the_fastest_of_all_is_named_and_all_others_are_told_apart(
    picture: tuple[Path, dict[str, Any]],
) -> None:
    for group in picture[1]["precision"]["groups"]:
        assert (group["fastest"]["run"], group["fastest"]["mode"]) == ("A", "inference_mode")
        assert group["not_apart"] == []
    page = (picture[0] / "runs.md").read_text()
    assert page.count("Fastest: A (bfloat16) with inference_mode") == 2


def test_what_is_not_told_apart_from_the_fastest_is_named(folders: list[Path], tmp_path: Path) -> None:
    found = make_picture(folders[1:], tmp_path)
    for group in found["precision"]["groups"]:
        fastest = group["fastest"]
        assert fastest["mode"] == "inference_mode"
        # Eager, at 0.7 of its speed, is told apart in either run.
        other = "A" if fastest["run"] == "B" else "B"
        assert [(one["run"], one["mode"]) for one in group["not_apart"]] == [(other, "inference_mode")]


def test_the_page_says_that_nothing_pairs_the_runs_and_shows_the_noise_of_each(
    picture: tuple[Path, dict[str, Any]],
) -> None:
    page = re.sub(r"<script>.*?</script>", "", (picture[0] / "runs.html").read_text(), flags=re.DOTALL)
    assert "these ratios are not paired" in page
    assert "8.2 %" in page
    assert page.count("eager against itself") == 2
    assert all(len(group["noise"]) == 3 for group in picture[1]["precision"]["groups"])


def test_how_often_texts_equal_float32s_is_counted(picture: tuple[Path, dict[str, Any]]) -> None:
    """Of every visit the first request of two wrote another text in bfloat16."""
    bfloat16, float32, autocast = picture[1]["precision"]["distances"]
    assert float32["equal_texts"] is None
    assert autocast["equal_texts"] == autocast["requests"] > 0
    assert bfloat16["requests"] == autocast["requests"]
    assert 2 * bfloat16["equal_texts"] == bfloat16["requests"]


def test_texts_of_other_prompts_are_not_compared(folders: list[Path], tmp_path: Path) -> None:
    other = made(tmp_path, "bfloat16", CLEAR, make_plan("quick", 2, ["eager", "inference_mode"], [1, 4]))
    found = make_picture([folders[1], other], tmp_path / "out")
    assert found["precision"]["distances"][1]["equal_texts"] is None
    assert "other prompts" in (tmp_path / "out" / "runs.html").read_text()


def test_too_few_rounds_have_a_ratio_but_no_verdict(tmp_path: Path) -> None:
    plan = Plan(preset="own", seed=1, rounds=2, cells=PLAN.cells)
    pair = [made(tmp_path, dtype, QUARTER if dtype == "bfloat16" else CLEAR, plan) for dtype in DTYPES[:2]]
    found = make_picture(pair, tmp_path / "out")
    for group in found["precision"]["groups"]:
        for row in group["modes"]:
            assert row["runs"][1]["speedup"]["value"] == pytest.approx(4, rel=0.1)
            assert row["runs"][1]["word"] == "undecided"
    assert "fewer than 8 rounds tell nothing apart" in (tmp_path / "out" / "runs.html").read_text()


def test_one_round_has_no_ratio(tmp_path: Path) -> None:
    plan = Plan(preset="own", seed=1, rounds=1, cells=PLAN.cells)
    pair = [made(tmp_path, dtype, CLEAR, plan) for dtype in DTYPES[:2]]
    found = make_picture(pair, tmp_path / "out")
    assert all(row["runs"][1]["speedup"] is None for row in found["precision"]["groups"][0]["modes"])
    assert "one round: no interval" in (tmp_path / "out" / "runs.html").read_text()


@pytest.mark.parametrize("changed", [{"threads": 2}, {"model_hash": "another"}, {"dtype": "bfloat16"}])
def test_runs_that_differ_in_more_than_precision_or_not_in_it_have_no_such_section(
    folders: list[Path], tmp_path: Path, changed: dict[str, Any]
) -> None:
    other = made(tmp_path, "autocast-bfloat16", CLEAR)
    edit_run(other, lambda run: run.engine.update(changed))
    found = make_picture([folders[0], other], tmp_path / "out")
    assert found["precision"] is None
    assert "What precision buys" not in (tmp_path / "out" / "runs.html").read_text()
