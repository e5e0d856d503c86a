"""Several runs on one page: what differs, who wins where, and that nothing pairs them."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import launchbound
from loadtests.plan.cells import Group
from loadtests.plan.presets import make_plan
from loadtests.report.results import read_results
from loadtests.report.verdict import Findings
from loadtests.run.rows import RowsError
from loadtests.side_by_side.entry import read_entries
from loadtests.side_by_side.files import make_picture, write_picture
from loadtests.side_by_side.view import place_of_group
from tests.support.made_evidence import edit_rows, edit_run
from tests.support.made_load import make_load
from tests.support.made_results import CLEAR, make_results

pytestmark = pytest.mark.slow

PLAN = make_plan("quick", 1, ["eager", "inference_mode", "compiled"])
FASTER = {mode: 0.5 * value for mode, value in CLEAR.items()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two dtypes, and a third run of another dtype whose modes take half the time."""
    root = tmp_path_factory.mktemp("runs")
    found = []
    for name, relative in (("float32", CLEAR), ("bfloat16", FASTER), ("autocast-bfloat16", CLEAR)):
        (root / name).mkdir()
        make_results(root / name, relative, plan=PLAN, seed=len(name))
        edit_run(root / name, lambda run, name=name: run.engine.update(dtype=name))  # type: ignore[misc]
        found.append(root / name)
    return found


@pytest.fixture(scope="module")
def picture(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of the picture, and its document."""
    out = tmp_path_factory.mktemp("picture") / "new"
    return out, make_picture(folders, out)


def test_the_lowest_run_is_named_and_the_others_are_not_apart_from_each_other(
    picture: tuple[Path, dict[str, Any]], folders: list[Path]
) -> None:
    _, found = picture
    assert found["headline"] == "Lowest latency: B (bfloat16) at batch 1, batch 4 and batch 16."
    assert {group["winner"] for group in found["groups"]} == {"B (bfloat16) with compiled"}
    alike = make_picture([folders[0], folders[2]], picture[0].parent / "alike")
    assert alike["headline"] == "The runs are not told apart at batch 1, batch 4 and batch 16."
    assert all("(not apart from" in group["winner"] for group in alike["groups"])
    page = (picture[0].parent / "alike" / "runs.html").read_text()
    assert (
        page.count('<p class="ship">not told apart<span class="under">lowest: ') == len(alike["groups"]) == 3
    )


def test_other_runs_are_told_apart_by_the_same_rule(folders: list[Path], tmp_path: Path) -> None:
    """Rounds alone would tell these apart, and so would the machine's next minutes."""
    runs = [tmp_path / name for name in ("off", "continuous")]
    for run, faster in zip(runs, (1.0, 1.15), strict=True):
        run.mkdir()
        make_results(run, {mode: value / faster for mode, value in CLEAR.items()}, plan=PLAN)
        edit_run(run, lambda one, name=run.name: one.engine.update(batching=name))  # type: ignore[misc]
    found = make_picture(runs, tmp_path / "near")
    spans = [[run["latency_seconds"] for run in group["runs"]] for group in found["groups"]]
    assert all(first["high"] < second["low"] for first, second in spans)
    assert found["headline"] == "The runs are not told apart at batch 1, batch 4 and batch 16."
    twice = make_picture([runs[0], folders[1]], tmp_path / "far")
    assert twice["headline"] == "Lowest latency: B (bfloat16) at batch 1, batch 4 and batch 16."


def test_a_place_has_the_conditions_that_differ_alone() -> None:
    one: Group = (1, "short", 32, 1, None)
    assert place_of_group(one, [one, (4, "short", 32, 1, None)]) == "batch 1"
    assert place_of_group(one, [one, (1, "short", 32, 24, None)]) == "batch 1 (c=1)"
    assert place_of_group(one, [one, (1, "long", 16, 1, None)]) == "batch 1 (short, 32 tokens)"


def test_only_what_differs_names_the_runs(picture: tuple[Path, dict[str, Any]]) -> None:
    _, found = picture
    assert found["differing"] == ["dtype"]
    assert [run["label"] for run in found["runs"]] == ["float32", "bfloat16", "autocast-bfloat16"]


def test_each_number_is_that_of_its_own_run(
    picture: tuple[Path, dict[str, Any]], folders: list[Path]
) -> None:
    _, found = picture
    for letter, folder in zip("ABC", folders, strict=True):
        for verdict in Findings(read_results(folder)).main:
            group = next(one for one in found["groups"] if one["batch_size"] == verdict.batch_size)
            own = next(one for one in group["runs"] if one["run"] == letter)
            shipped = verdict.shipped
            assert shipped is not None
            assert shipped.comparison is not None
            assert own["mode"] == shipped.cell.mode
            assert own["latency_seconds"]["value"] == pytest.approx(shipped.latency.value)
            assert own["speedup"]["low"] == pytest.approx(shipped.comparison.speedup.low)


def test_the_page_needs_no_network_and_says_that_nothing_is_paired(
    picture: tuple[Path, dict[str, Any]],
) -> None:
    out, found = picture
    page = re.sub(r"<script>.*?</script>", "", (out / "runs.html").read_text(), flags=re.DOTALL)
    assert f"<h1>{found['headline']}</h1>" in page
    assert "Runs are not paired" in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert page.count('data-plot="') == 3
    assert f"# {found['headline']}" in (out / "runs.md").read_text()
    assert json.loads((out / "runs.json").read_text()) == found


def test_every_row_of_the_markdown_tables_has_all_columns(picture: tuple[Path, dict[str, Any]]) -> None:
    tables: dict[int, set[int]] = {}
    number = 0
    for line in (picture[0] / "runs.md").read_text().splitlines():
        if line.startswith("|"):
            tables.setdefault(number, set()).add(line.count("|"))
        else:
            number += 1
    assert len(tables) == 1 + 3 + 3 + 1 + 3
    assert all(len(widths) == 1 for widths in tables.values())


def test_a_run_that_is_not_valid_is_said_first(folders: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    make_results(bad, plan=PLAN, fail=1)
    found = make_picture([folders[0], bad], tmp_path / "out")
    page = (tmp_path / "out" / "runs.html").read_text()
    assert [run["valid"] for run in found["runs"]] == [True, False]
    assert page.index("B is not valid") < page.index("<h1>")
    assert found["headline"].startswith("NOT VALID: B (")
    arguments = ["report", str(folders[0]), str(bad), "--out", str(tmp_path / "again")]
    done = CliRunner().invoke(launchbound.app, arguments)
    assert done.exit_code == 1
    assert done.stdout.startswith("NOT VALID: B (")


def test_runs_without_a_common_cell_say_so(folders: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    make_results(other, plan=make_plan("quick", 1, ["eager", "compiled"], [2]))
    found = make_picture([folders[0], other], tmp_path / "out")
    assert "no cells in common" in found["headline"]
    assert found["groups"] == []


def test_runs_under_load_stand_side_by_side_at_each_rate_with_their_effective_batch(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("off", "continuous")]
    for folder in folders:
        folder.mkdir()
        make_load(folder, (20, 60), requests=40)
    edit_run(folders[1], lambda run: run.engine.update(batching="continuous"))
    for folder, batch in zip(folders, (1.0, 3.5), strict=True):
        edit_rows(folder, lambda row, batch=batch: row.update(effective_batch=batch))  # type: ignore[misc]
    make_picture(folders, tmp_path / "picture")
    text = (tmp_path / "picture" / "runs.md").read_text()
    rates = re.findall(r"^\| (\w+) \| (\d+) \| (A|B) \((\w+)\) \| ([\d.]+) ", text, re.MULTILINE)
    assert rates == [
        (mode, rate, letter, label, batch)
        for mode in ("eager", "inference_mode")
        for rate in ("20", "60")
        for letter, label, batch in (("A", "off", "1.00"), ("B", "continuous", "3.50"))
    ]
    knees = re.findall(r"^\| (\w+) \| (A|B) \(\w+\) \| (.+) \|$", text, re.MULTILINE)
    assert [(mode, letter) for mode, letter, _ in knees] == [
        (mode, letter) for mode in ("eager", "inference_mode") for letter in "AB"
    ]
    assert text.count(" | 0 of 8 |") == len(rates)
    assert "Under load" in (tmp_path / "picture" / "runs.html").read_text()


def test_the_same_folder_twice_is_refused(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(RowsError, match="named twice"):
        make_picture([folders[0], folders[0]], tmp_path)


def test_the_verb_makes_a_picture_of_several_folders_and_ends_with_one_json_line(
    folders: list[Path], tmp_path: Path
) -> None:
    arguments = ["report", *map(str, folders), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(launchbound.app, arguments, catch_exceptions=False)
    last = json.loads(done.stdout.strip().splitlines()[-1])
    assert done.exit_code == 0
    assert last["path"] == str(tmp_path / "out")
    assert (tmp_path / "out" / "runs.html").exists()


@pytest.mark.parametrize("options", [["--out", "x"], ["--peers", "x"]])
def test_options_that_do_not_fit_the_number_of_folders_are_bad_input(
    folders: list[Path], options: list[str]
) -> None:
    several = folders if "--peers" in options else folders[:1]
    done = CliRunner().invoke(launchbound.app, ["report", *map(str, several), *options])
    assert done.exit_code == 2


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 390])
def test_the_page_draws_and_does_not_scroll_sideways(folders: list[Path], tmp_path: Path, width: int) -> None:
    """Nor by what a run has said that was not measured, which may be a path."""
    write_picture(read_entries(folders), tmp_path, {"another": "/a/very/long/path" * 20})
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        assert not os.environ.get("REQUIRE_ALL"), "chromium is missing: install it"
        pytest.skip("no chromium")
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        tab = browser.new_page(viewport={"width": width, "height": 900})
        problems: list[str] = []
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.goto((tmp_path / "runs.html").as_uri())
        tab.wait_for_selector("#speedup .main-svg")
        drawn = tab.locator(".plot .main-svg").count()
        reach = tab.evaluate("document.documentElement.scrollWidth")
        browser.close()
    assert problems == []
    assert drawn >= 3
    assert reach <= width
