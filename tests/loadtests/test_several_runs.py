"""Several runs on one page: who is fastest where, what a precision buys, and whether repeats agree."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner

import launchbound
from loadtests.compare.page import make_picture, write_picture
from loadtests.compare.runs import read_entries
from loadtests.plan.cells import Plan
from loadtests.plan.plan_file import DTYPES
from loadtests.plan.presets import make_plan
from loadtests.report.findings import Findings
from loadtests.report.results import read_results
from loadtests.run.rows import RowsError
from service.statistics.choice import LATENCY_SCATTER, difference
from service.step.loaded_model import PRECISIONS
from tests.support.made_results import CLEAR, edit_rows, edit_run, make_load, make_results

Picture = tuple[Path, dict[str, Any]]
"""The folder of a picture, and its document."""

MODES = ["eager", "inference_mode", "compiled"]
PLAN = make_plan("quick", 1, MODES, [1, 4])
QUARTER = {mode: 0.25 * value for mode, value in CLEAR.items()}
OTHERWISE = CLEAR | {"inference_mode": 0.4, "compiled": 0.7}
TIED = CLEAR | {"inference_mode": 0.4}


def made(root: Path, dtype: str, relative: Mapping[str, float] = CLEAR, plan: Plan = PLAN) -> Path:
    """A run in `dtype`, whose requests wrote one of two texts by turns; in bfloat16 a third, each time."""
    folder = make_results(root / dtype, dict(relative), plan=plan, seed=len(dtype))
    edit_run(folder, lambda run: run.engine.update(dtype=dtype))
    seen = Counter[tuple[str, int]]()

    def write_text(row: dict[str, Any]) -> None:
        place = (row["cell"], row["round"])
        index = seen[place]
        seen[place] += 1
        text = "other" if dtype == "bfloat16" and index == 0 else f"text {index}"
        row.update(index=index, text_digest=text)

    edit_rows(folder, write_text)
    return folder


def swept(root: Path, *speeds: Mapping[str, float], plan: Plan = PLAN) -> list[Path]:
    """Sweeps of one build on one machine."""
    return [
        make_results(root / f"seed-{number}", dict(relative), plan=plan, seed=number)
        for number, relative in enumerate(speeds)
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """bfloat16 in a quarter of float32's time, and autocast as fast as float32."""
    root = tmp_path_factory.mktemp("precisions")
    speeds = {"bfloat16": QUARTER, "float32": CLEAR, "autocast-bfloat16": CLEAR}
    return [made(root, dtype, relative) for dtype, relative in speeds.items()]


@pytest.fixture(scope="module")
def precisions(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Picture:
    out = tmp_path_factory.mktemp("picture") / "new"
    return out, make_picture(folders, out)


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five sweeps of one build, in one of which two modes tie."""
    return swept(tmp_path_factory.mktemp("alike"), CLEAR, CLEAR, TIED, CLEAR, CLEAR)


@pytest.fixture(scope="module")
def repeats(alike: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Picture:
    out = tmp_path_factory.mktemp("repeats")
    return out, make_picture(alike, out)


def test_the_lowest_run_is_named_and_the_others_are_not_apart_from_each_other(
    precisions: Picture, folders: list[Path], tmp_path: Path
) -> None:
    _, found = precisions
    assert found["headline"] == "Lowest latency: A (bfloat16) at batch 1 and batch 4."
    assert {group["winner"] for group in found["groups"]} == {"A (bfloat16) with compiled"}
    near = make_picture(folders[1:], tmp_path)
    assert near["headline"] == "The runs are not told apart at batch 1 and batch 4."
    assert all("(not apart from" in group["winner"] for group in near["groups"])


def test_other_runs_are_told_apart_by_the_same_rule(tmp_path: Path) -> None:
    """Rounds alone would tell these apart, and so would the machine's next minutes."""
    runs = swept(tmp_path, CLEAR, {mode: value / 1.15 for mode, value in CLEAR.items()})
    edit_run(runs[1], lambda run: run.engine.update(batching="continuous"))
    found = make_picture(runs, tmp_path / "near")
    spans = [{run["run"]: run["latency_seconds"] for run in group["runs"]} for group in found["groups"]]
    assert all(span["B"]["high"] < span["A"]["low"] for span in spans)
    assert found["headline"] == "The runs are not told apart at batch 1 and batch 4."


def test_only_what_differs_names_the_runs_and_each_number_is_that_of_its_own(
    precisions: Picture, folders: list[Path]
) -> None:
    _, found = precisions
    assert found["differing"] == ["dtype"]
    assert [run["label"] for run in found["runs"]] == ["bfloat16", "float32", "autocast-bfloat16"]
    for letter, folder in zip("ABC", folders, strict=True):
        for group, verdict in zip(found["groups"], Findings(read_results(folder)).main, strict=True):
            shown = {run["run"]: run["latency_seconds"]["value"] for run in group["runs"]}
            assert shown[letter] == pytest.approx(verdict.shipped.latency.value)


def test_the_page_needs_no_network_and_its_tables_have_all_columns(
    precisions: Picture, folders: list[Path], tmp_path: Path
) -> None:
    out, found = precisions
    page = re.sub(r"<script>.*?</script>", "", (out / "runs.html").read_text(), flags=re.DOTALL)
    assert f"<h1>{found['headline']}</h1>" in page
    assert "Runs are not paired" in page
    assert "8.2 %" in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert page.count('data-plot="') == 3
    assert page.count("eager against itself") == 2
    text = (out / "runs.md").read_text()
    assert f"# {found['headline']}" in text
    assert json.loads((out / "runs.json").read_text()) == found
    tables = [re.findall(r"^\|.*\|$", part, re.MULTILINE) for part in text.split("\n\n")]
    widths = [{row.count("|") for row in rows} for rows in tables if rows]
    assert len(widths) == 1 + 2 + 1
    assert all(len(one) == 1 for one in widths)
    with pytest.raises(RowsError, match="named twice"):
        make_picture([folders[0], folders[0]], tmp_path)


@pytest.mark.parametrize("bad", [0, 1])
def test_the_verb_says_a_run_that_is_not_valid_first_and_ends_with_one_json_line(
    alike: list[Path], tmp_path: Path, bad: int
) -> None:
    make_results(tmp_path / "B", plan=PLAN, fail=bad)
    arguments = ["report", str(alike[0]), str(tmp_path / "B"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(launchbound.app, arguments)
    page = (tmp_path / "out" / "runs.html").read_text()
    assert done.exit_code == bad
    assert json.loads(done.stdout.splitlines()[-1])["path"] == str(tmp_path / "out")
    assert done.stdout.startswith("NOT VALID: B (B). 2 sweeps of one build agree") == bool(bad)
    assert (0 < page.find("B is not valid") < page.index("<h1>")) == bool(bad)


def test_runs_without_a_common_cell_say_so(folders: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_results(other, plan=make_plan("quick", 1, ["eager", "compiled"], [2]))
    found = make_picture([folders[0], other], tmp_path / "out")
    assert "no cells in common" in found["headline"]
    assert found["groups"] == []


def test_runs_under_load_stand_side_by_side_at_each_rate_with_their_effective_batch(tmp_path: Path) -> None:
    folders = [make_load(tmp_path / name, (20, 60), requests=40) for name in ("off", "continuous")]
    edit_run(folders[1], lambda run: run.engine.update(batching="continuous"))
    for folder, batch in zip(folders, (1.0, 3.5), strict=True):
        edit_rows(folder, lambda row, batch=batch: row.update(effective_batch=batch))  # type: ignore[misc]
    make_picture(folders, tmp_path / "picture")
    text = (tmp_path / "picture" / "runs.md").read_text()
    rates = re.findall(r"^\| (\w+) \| (A|B) \((\w+)\) \| (\d+) \| ([\d.]+) ", text, re.MULTILINE)
    assert rates == [
        (mode, letter, label, rate, batch)
        for mode in ("eager", "inference_mode")
        for rate in ("20", "60")
        for letter, label, batch in (("A", "off", "1.00"), ("B", "continuous", "3.50"))
    ]
    knees = re.findall(r"^\| (eager|inference_mode) \| (A|B) \(\w+\) \| [^|]+ \|$", text, re.MULTILINE)
    assert len(knees) == 4
    assert text.count(" | 0 of 8 |") == len(rates)
    assert "Under load" in (tmp_path / "picture" / "runs.html").read_text()


@pytest.mark.parametrize("options", [["--out", "x"], ["--peers", "x"]])
def test_options_that_do_not_fit_the_number_of_folders_are_bad_input(
    folders: list[Path], options: list[str]
) -> None:
    several = folders if "--peers" in options else folders[:1]
    done = CliRunner().invoke(launchbound.app, ["report", *map(str, several), *options])
    assert done.exit_code == 2


def test_the_plans_precisions_are_those_of_the_service() -> None:
    assert set(DTYPES) == set(PRECISIONS)


def test_a_ratio_is_float32s_latency_over_that_of_the_same_mode_with_the_scatter_of_sweeps(
    precisions: Picture, folders: list[Path]
) -> None:
    found = precisions[1]["precision"]
    assert found["reference"] == "B"
    for group in found["groups"]:
        for row in group["modes"]:
            bfloat16, float32, autocast = row["runs"]
            assert bfloat16["speedup"]["value"] == pytest.approx(4, rel=0.05)
            assert bfloat16["word"] == "faster"
            assert float32["speedup"] is None
            assert autocast["speedup"]["low"] < 1 < autocast["speedup"]["high"]
            assert autocast["word"] == "no detectable difference"
    run = next(row for row in found["groups"][0]["modes"] if row["mode"] == "eager")["runs"][0]
    cell = next(cell for cell in PLAN.cells if cell.mode == "eager" and cell.batch_size == 1)
    sides = [list(read_results(one).medians(cell.name).values()) for one in folders[:2]]
    expected = difference([sides[0]], [sides[1]], LATENCY_SCATTER).interval()
    assert run["speedup"]["low"] == pytest.approx(expected.low)
    assert run["speedup"]["high"] == pytest.approx(expected.high)


def test_how_often_texts_equal_float32s_is_counted(
    precisions: Picture, folders: list[Path], tmp_path: Path
) -> None:
    """Of every visit the first request of two wrote another text in bfloat16."""
    bfloat16, float32, autocast = precisions[1]["precision"]["distances"]
    assert float32["equal_texts"] is None
    assert autocast["equal_texts"] == autocast["requests"] > 0
    assert bfloat16["requests"] == autocast["requests"]
    assert 2 * bfloat16["equal_texts"] == bfloat16["requests"]
    other = made(tmp_path, "bfloat16", CLEAR, make_plan("quick", 2, MODES, [1, 4]))
    found = make_picture([folders[1], other], tmp_path / "out")
    assert found["precision"]["distances"][1]["equal_texts"] is None
    assert "other prompts" in (tmp_path / "out" / "runs.html").read_text()


@pytest.mark.parametrize(("rounds", "ratio"), [(2, pytest.approx(4, rel=0.1)), (1, None)])
def test_too_few_rounds_have_no_verdict_and_one_has_no_ratio(
    tmp_path: Path, rounds: int, ratio: object
) -> None:
    plan = Plan(preset="own", seed=1, rounds=rounds, cells=PLAN.cells)
    pair = [made(tmp_path, dtype, QUARTER if dtype == "bfloat16" else CLEAR, plan) for dtype in DTYPES[:2]]
    found = make_picture(pair, tmp_path / "out")
    for group in found["precision"]["groups"]:
        for row in group["modes"]:
            speedup = row["runs"][1]["speedup"]
            assert (speedup and speedup["value"]) == ratio
            assert row["runs"][1]["word"] == "undecided"
    assert ("one round: no interval" in (tmp_path / "out" / "runs.html").read_text()) == (rounds == 1)


@pytest.mark.parametrize("changed", [{"threads": 2}, {"model_hash": "another"}, {"dtype": "bfloat16"}])
def test_runs_that_differ_in_more_than_precision_or_not_in_it_are_not_compared_by_it(
    folders: list[Path], tmp_path: Path, changed: dict[str, Any]
) -> None:
    other = made(tmp_path, "autocast-bfloat16", CLEAR)
    edit_run(other, lambda run: run.engine.update(changed))
    found = make_picture([folders[0], other], tmp_path / "out")
    assert found["precision"] is None
    assert "How far from" not in (tmp_path / "out" / "runs.html").read_text()


def test_sweeps_that_agree_are_said_to_and_not_asked_which_is_fastest(repeats: Picture) -> None:
    out, found = repeats
    answer = "compiled in 5 of 5 at batch 1 and batch 4"
    assert found["headline"] == f"5 sweeps of one build agree, alone or in a tie: {answer}."
    page, text = (out / "runs.html").read_text(), (out / "runs.md").read_text()
    assert "Lowest latency" not in page + text
    assert page.count("compiled is in 5 of 5 answers, alone in 4.") == 2
    assert text.count("inference_mode = compiled") == 2


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


def test_what_sweeps_say_together_rests_on_sweeps_and_not_on_their_rounds(
    repeats: Picture, alike: list[Path]
) -> None:
    """A gain is the mean of their own; what ties in one is compared over all of them."""
    findings = [Findings(read_results(folder)) for folder in alike]
    for number, group in enumerate(repeats[1]["repeats"]["groups"]):
        verdicts = [one.main[number] for one in findings]
        own = [s.comparison.speedup.value for v in verdicts if (s := v.of("compiled")).comparison]
        gains = {one["mode"]: one["speedup"] for one in group["over_baseline"]}
        assert gains.keys() == {"inference_mode", "compiled"}
        assert gains["compiled"]["value"] == pytest.approx(math.exp(fmean(map(math.log, own))))
        assert gains["compiled"]["samples"] == 5
        assert group["named"] == "compiled"
        (over,) = group["over_named"]
        assert over["mode"] == "inference_mode"
        assert over["speedup"]["value"] == pytest.approx((0.4 / 0.7) ** (4 / 5), rel=0.02)
        shares = [index for v in verdicts if (index := v.baseline.decode.index) is not None]
        assert group["device_bound_index"]["value"] == pytest.approx(fmean(shares))


@pytest.mark.parametrize(
    ("place", "fact"), [("environment", "commit"), ("environment", "cpu"), ("engine", "dtype")]
)
def test_runs_of_something_else_are_no_repeats(tmp_path: Path, place: str, fact: str) -> None:
    folders = swept(tmp_path, CLEAR, CLEAR)
    edit_run(folders[1], lambda run: getattr(run, place).update({fact: "another"}))
    found = make_picture(folders, tmp_path / "out")
    assert found["repeats"] is None
    assert found["headline"].startswith("The runs are not told apart")


def test_groups_and_modes_that_one_sweep_lacks_are_left_out(tmp_path: Path) -> None:
    fewer = make_plan("quick", 1, ["eager", "compiled"], [1])
    folders = [*swept(tmp_path / "all", TIED, TIED), *swept(tmp_path / "fewer", CLEAR, plan=fewer)]
    (group,) = make_picture(folders, tmp_path / "out")["repeats"]["groups"]
    assert group["batch_size"] == 1
    assert [one["mode"] for one in group["over_baseline"]] == ["compiled"]
    assert group["over_named"] == []
    assert group["answers"][0] == ["inference_mode", "compiled"]


@pytest.mark.browser
def test_the_page_draws_and_does_not_scroll_sideways(folders: list[Path], tmp_path: Path) -> None:
    """Nor by what a run has said that was not measured, which may be a path."""
    from tests.support.browser import NARROW, WIDE, chromium, tab

    write_picture(read_entries(folders), tmp_path, {"another": "/a/very/long/path" * 20})
    with chromium() as browser:
        for size in (WIDE, NARROW):
            with tab(browser, tmp_path.as_uri(), size) as opened:
                opened.open("/runs.html", ready="#speedup .main-svg")
                assert opened.page.locator(".plot .main-svg").count() >= 3
                assert opened.reach() <= size[0]
