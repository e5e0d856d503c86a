"""Two builds compared from their folders, and several runs on one page: matched, refused, judged and told."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

import launchbound
from loadtests.compare.builds import BuildComparison, compare_builds
from loadtests.compare.page import make_picture
from loadtests.compare.runs import Unlike, read_side
from loadtests.plan.cells import Cell, Plan
from loadtests.plan.plan_file import DTYPES
from loadtests.report.findings import Findings
from loadtests.report.results import read_results
from loadtests.run.rows import RowsError
from loadtests.run.run_file import SweepRun
from service.statistics.choice import LATENCY_SCATTER, difference
from tests.support.made_plans import make_plan
from tests.support.made_results import CLEAR, edit_run, make_results

PLAN = make_plan("quick", 1, ["eager", "inference_mode", "compiled"], [1, 4])
CELLS = 6


def made(folder: Path, relative: dict[str, float] = CLEAR, commit: str = "a" * 12, **options: Any) -> Path:
    """A sweep of the build `commit`."""
    make_results(folder, relative, plan=PLAN, **options)
    edit_run(folder, lambda run: run.environment.update(commit=commit))
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two single sweeps (`old`, `same`), and three builds in turn (`before`, `after`, `late`)."""
    root = tmp_path_factory.mktemp("builds")
    made(root / "old", seed=1)
    made(root / "same", commit="b" * 12, seed=2)
    for n in range(4):
        at = [f"2026-01-01T0{n}:{minute}:00Z" for minute in ("00", "10", "20")]
        drifted = {mode: value * 1.15**n for mode, value in CLEAR.items()}
        worse = {mode: value * (1.2 if mode == "compiled" else 1.0) for mode, value in drifted.items()}
        made(root / "before" / f"{n}", drifted, seed=10 + n, started=at[0])
        made(root / "after" / f"{n}", drifted, "b" * 12, seed=20 + n, started=at[1])
        made(root / "late" / f"{n}", worse, "c" * 12, seed=30 + n, started=at[2])
    return root


def compared(root: Path, before: str, after: str, **options: Any) -> BuildComparison:
    return compare_builds(root / before, root / after, **options)


def run(root: Path, *arguments: str) -> Any:
    return CliRunner().invoke(launchbound.app, ["compare", *arguments], catch_exceptions=False)


def test_cells_of_equal_builds_are_matched_without_the_control_and_do_not_differ(root: Path) -> None:
    found = compared(root, "old", "same")
    assert len(found.cells) == CELLS
    assert {(one.mode, one.batch_size) for one in found.cells} == {
        (mode, batch) for mode in ("eager", "inference_mode", "compiled") for batch in (1, 4)
    }
    assert all(one.rounds == [8, 8] for one in found.cells)
    assert found.confidence == pytest.approx(1 - 0.05 / CELLS)
    assert found.unit == "rounds"
    assert compared(root, "old", "same", allowed=0.05).decision == "undecided"  # a single sweep each
    assert {one.word for one in found.cells} == {"no detectable difference"}


def test_open_loops_are_not_compared_at_rates_of_ones_own_either(tmp_path: Path) -> None:
    closed = Cell(mode="eager", batch_size=1)
    opened = (Cell(mode="eager", batch_size=1, load=0.5), Cell(mode="eager", batch_size=1, rate=9.0))
    make_results(tmp_path, plan=Plan(preset="own", seed=1, rounds=8, cells=(closed, *opened)))
    assert list(read_side(tmp_path).cells) == [closed.name]


def test_builds_that_were_swept_in_turn_are_paired_and_a_drift_cancels(root: Path) -> None:
    alike = compared(root, "before", "after")
    assert (alike.in_turn, alike.unit) == (True, "pairs of sweeps")
    assert not alike.with_word("slower")
    worse = compared(root, "before", "late")
    assert {one.mode for one in worse.with_word("slower")} == {"compiled"}
    assert all(one.word_against_baseline == "slower" for one in worse.with_word("slower"))


@pytest.mark.parametrize(
    ("after", "allowed", "decision", "code"),
    [
        ("late", None, None, 0),
        ("after", 0.05, "not slower", 0),
        ("late", 0.05, "slower", 1),
        ("late", 0.2, "undecided", 3),
    ],
)
def test_the_decision_is_the_exit_code_and_without_a_limit_there_is_none(
    root: Path, after: str, allowed: float | None, decision: str | None, code: int
) -> None:
    found = compared(root, "before", after, allowed=allowed)
    assert (found.decision, found.exit_code) == (decision, code)


UNLIKE: list[tuple[str, Callable[[SweepRun], None]]] = [
    ("the service's processor", lambda run: run.environment.update(cpu="another")),
    ("replicas behind its address", lambda run: setattr(run, "plan", replace(run.plan, replicas=True))),
    ("its GPU", lambda run: run.environment.update(gpus=[{"name": "a GPU"}])),
    ("model hash", lambda run: run.engine.update(model_hash="another")),
    ("dtype", lambda run: run.engine.update(dtype="bfloat16")),
    ("layout of linear weights", lambda run: run.engine.update(linears={"layout": "transposed"})),
    ("method", lambda run: run.environment.update(method=99)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fact", "change"), UNLIKE)
def test_unlike_runs_are_refused_and_named_and_forced_ones_say_so(
    root: Path, tmp_path: Path, fact: str, change: Callable[[SweepRun], None]
) -> None:
    other = shutil.copytree(root / "same", tmp_path / "other")
    edit_run(other, change)
    with pytest.raises(Unlike, match=f"{fact}: .*--force"):
        compare_builds(root / "old", other)
    if fact == "layout of linear weights":
        with pytest.raises(Unlike, match="LAUNCHBOUND_LINEARS=aten or transposed"):
            compare_builds(root / "old", other)
    forced = compare_builds(root / "old", other, force=True)
    assert [one.fact for one in forced.forced] == [fact]
    assert (
        f"FORCED: these are not alike, and what follows mixes it all: {fact}"
        in run(root, str(root / "old"), str(other), "--force").stdout
    )


def test_a_sweep_of_both_sides_not_valid_or_of_mixed_builds_or_no_known_machine_is_refused(
    root: Path, tmp_path: Path
) -> None:
    with pytest.raises(Unlike, match="same stands on both sides"):
        compare_builds(root / "same", root / "same", force=True)
    with pytest.raises(Unlike, match=r"failed gates of .*no errors"):
        compare_builds(root / "old", made(tmp_path / "bad", fail=1))
    mixed, silent = (shutil.copytree(root / name, tmp_path / name) for name in ("before", "old"))
    edit_run(mixed / "1", lambda run: run.environment.update(commit="d" * 12))
    with pytest.raises(Unlike, match="not of one build"):
        compare_builds(mixed, root / "after")
    edit_run(silent, lambda run: run.environment.clear())
    with pytest.raises(Unlike, match="does not say on which machine"):
        compare_builds(silent, root / "same")


def test_cells_that_only_one_side_has_are_named(root: Path, tmp_path: Path) -> None:
    plan = make_plan("quick", 1, ["eager", "compiled"], [1])
    few = tmp_path / "few"
    make_results(few, plan=plan)
    found = compare_builds(root / "old", few)
    assert len(found.cells) == 2
    assert set(found.left_out.values()) == {f"not in every sweep of {few}"}


def test_too_few_rounds_in_a_single_sweep_are_left_out_with_the_reason(root: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    make_results(short, plan=replace(PLAN, rounds=5, rounds_most=5))
    with pytest.raises(Unlike, match="5 rounds, at least 8"):
        compare_builds(root / "old", short)


def test_the_verb_begins_with_the_verdict_and_ends_with_one_json_line(root: Path) -> None:
    done = run(root, str(root / "before"), str(root / "late"), "--fail-if-slower", "5%")
    lines = done.stdout.strip().splitlines()
    assert done.exit_code == 1
    assert lines[0].startswith("Slower by more than 5.00 %; 2 of 6 cells slower: compiled b=")
    found = json.loads(lines[-1])
    assert (found["decision"], found["unit"], len(found["cells"])) == ("slower", "pairs of sweeps", CELLS)
    worst = next(one for one in found["cells"] if one["mode"] == "compiled")
    assert worst["ratio"]["low"] > 1.05
    assert worst["ratio"]["value"] == pytest.approx(1.2, rel=0.05)
    assert worst["after_seconds"] > worst["before_seconds"]
    assert "4 pairs of sweeps" in done.stdout
    assert "smallest slow-down that 80 % of such comparisons find" in done.stdout


def test_the_table_for_a_pull_request_has_a_row_per_cell(root: Path) -> None:
    done = run(root, str(root / "before"), str(root / "after"), "--markdown")
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert done.exit_code == 0
    assert done.stdout.startswith("**No detectable difference in any of 6 cells (could have shown +")
    assert len(rows) == CELLS + 2
    assert len({row.count("|") for row in rows}) == 1


def test_refused_runs_and_a_limit_that_is_no_share_are_bad_input(root: Path, tmp_path: Path) -> None:
    for limit in ("five", "-5%", "nan"):
        done = run(root, str(root / "old"), str(root / "same"), f"--fail-if-slower={limit}")
        assert done.exit_code == 2
        assert "give it in percent" in done.stderr
    done = run(root, str(root / "old"), str(tmp_path))
    assert done.exit_code == 2
    assert "holds no sweep" in done.stderr


# ---------------------------------------------------------------- several runs on one page

Picture = tuple[Path, dict[str, Any]]
"""The folder of a picture, and its document."""

QUARTER = {mode: 0.25 * value for mode, value in CLEAR.items()}
OTHERWISE = CLEAR | {"inference_mode": 0.4, "compiled": 0.7}
TIED = CLEAR | {"inference_mode": 0.4}


def made_in(root: Path, dtype: str, relative: Mapping[str, float] = CLEAR, plan: Plan = PLAN) -> Path:
    """A run in `dtype`."""
    folder = make_results(root / dtype, dict(relative), plan=plan, seed=len(dtype))
    edit_run(folder, lambda run: run.engine.update(dtype=dtype))
    return folder


def swept(root: Path, *speeds: Mapping[str, float]) -> list[Path]:
    """Sweeps of one build on one machine."""
    return [
        make_results(root / f"seed-{number}", dict(relative), plan=PLAN, seed=number)
        for number, relative in enumerate(speeds)
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """bfloat16 in a quarter of float32's time, and autocast as fast as float32."""
    root = tmp_path_factory.mktemp("precisions")
    speeds = {"bfloat16": QUARTER, "float32": CLEAR, "autocast-bfloat16": CLEAR}
    return [made_in(root, dtype, relative) for dtype, relative in speeds.items()]


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
    assert found["headline"] == "Lowest latency: A (bfloat16) with compiled at batch 1 and batch 4."
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
    assert page.count("eager against itself") == 2
    text = (out / "runs.md").read_text()
    assert f"# {found['headline']}" in text
    assert json.loads((out / "runs.json").read_text()) == found
    tables = [re.findall(r"^\|.*\|$", part, re.MULTILINE) for part in text.split("\n\n")]
    widths = [{row.count("|") for row in rows} for rows in tables if rows]
    assert len(widths) == 1 + 2
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


@pytest.mark.parametrize(("rounds", "ratio"), [(2, pytest.approx(4, rel=0.1)), (1, None)])
def test_too_few_rounds_have_no_verdict_and_one_has_no_ratio(
    tmp_path: Path, rounds: int, ratio: object
) -> None:
    plan = Plan(preset="own", seed=1, rounds=rounds, cells=PLAN.cells)
    pair = [made_in(tmp_path, dtype, QUARTER if dtype == "bfloat16" else CLEAR, plan) for dtype in DTYPES[:2]]
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
    other = made_in(tmp_path, "autocast-bfloat16", CLEAR)
    edit_run(other, lambda run: run.engine.update(changed))
    found = make_picture([folders[0], other], tmp_path / "out")
    assert found["precision"] is None


def test_sweeps_that_agree_are_said_to_and_not_asked_which_is_fastest(repeats: Picture) -> None:
    out, found = repeats
    answer = "compiled in 4 of 5 at batch 1 and batch 4"
    assert found["headline"] == f"5 sweeps of one build agree: {answer}."
    page, text = (out / "runs.html").read_text(), (out / "runs.md").read_text()
    assert "Lowest latency" not in page + text
    assert page.count("compiled is the answer of 4 of 5.") == 2
    assert len(re.findall(r"mode to ship \|.* inference_mode \|", text)) == 2


def test_one_sweep_of_five_may_say_otherwise_and_two_may_not(tmp_path: Path) -> None:
    four = make_picture(swept(tmp_path / "4", CLEAR, OTHERWISE, CLEAR, CLEAR, CLEAR), tmp_path / "four")
    assert four["headline"].startswith("5 sweeps of one build agree: compiled in 4 of 5")
    two = swept(tmp_path / "3", CLEAR, OTHERWISE, CLEAR, OTHERWISE, CLEAR)
    three = make_picture(two, tmp_path / "three")
    places = "batch 1 and batch 4"
    assert three["headline"] == (
        f"The answer does not replicate at {places}: no mode is the answer of more than 3 of 5."
    )
    assert [group["replicates"] for group in three["repeats"]["groups"]] == [False, False]
    page = (tmp_path / "three" / "runs.html").read_text()
    assert page.count("compiled is the answer of 3 of 5: the answer does not replicate.") == 2


@pytest.mark.parametrize(
    ("place", "fact"), [("environment", "commit"), ("environment", "cpu"), ("engine", "dtype")]
)
def test_runs_of_something_else_are_no_repeats(tmp_path: Path, place: str, fact: str) -> None:
    folders = swept(tmp_path, CLEAR, CLEAR)
    edit_run(folders[1], lambda run: getattr(run, place).update({fact: "another"}))
    found = make_picture(folders, tmp_path / "out")
    assert found["repeats"] is None
    assert found["headline"].startswith("The runs are not told apart")
