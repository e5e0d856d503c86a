"""Two builds compared from their folders: matched, refused, judged and told."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

import launchbound
from loadtests.compare.builds import BuildComparison, compare_builds
from loadtests.compare.runs import Unlike, read_side
from loadtests.plan.cells import Cell, Plan
from loadtests.plan.presets import make_plan
from loadtests.report.page import Table, Text, as_rich
from loadtests.run.run_file import SweepRun
from tests.support.made_results import CLEAR, edit_run, make_results

PLAN = make_plan("quick", 1, ["eager", "inference_mode", "compiled"], [1, 4])
CELLS = 6
SLOWER = {mode: 1.2 * value if mode == "compiled" else value for mode, value in CLEAR.items()}


def made(folder: Path, relative: dict[str, float] = CLEAR, commit: str = "a" * 12, **options: Any) -> Path:
    """A sweep of the build `commit`."""
    make_results(folder, relative, plan=PLAN, **options)
    edit_run(folder, lambda run: run.environment.update(commit=commit))
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three single sweeps (`old`, `same`, `slow`), and three builds in turn (`before`, `after`, `late`)."""
    root = tmp_path_factory.mktemp("builds")
    made(root / "old", seed=1)
    made(root / "same", commit="b" * 12, seed=2)
    made(root / "slow", SLOWER, "c" * 12, seed=3)
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
    found = CliRunner().invoke(launchbound.app, ["compare", *arguments], catch_exceptions=False)
    return found


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


def with_replicas(plan: Plan) -> Plan:
    return msgspec.structs.replace(plan, replicas=True)


UNLIKE: list[tuple[str, Callable[[SweepRun], None]]] = [
    ("the service's processor", lambda run: run.environment.update(cpu="another")),
    ("its cores", lambda run: run.environment.update(cores=64)),
    ("replicas behind its address", lambda run: setattr(run, "plan", with_replicas(run.plan))),
    ("its GPU", lambda run: run.environment.update(gpus=[{"name": "a GPU"}])),
    ("model hash", lambda run: run.engine.update(model_hash="another")),
    ("dtype", lambda run: run.engine.update(dtype="bfloat16")),
    ("torch", lambda run: run.engine.update(torch="2.14.0")),
    ("threads", lambda run: run.engine.update(threads=2)),
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


def test_a_sweep_is_not_compared_with_itself(root: Path) -> None:
    with pytest.raises(Unlike, match="same stands on both sides"):
        compare_builds(root / "same", root / "same", force=True)


def test_a_service_that_did_not_say_its_machine_is_refused(root: Path, tmp_path: Path) -> None:
    sides = [shutil.copytree(root / name, tmp_path / name) for name in ("old", "same")]
    for side in sides:
        edit_run(side, lambda run: run.environment.clear())
    with pytest.raises(Unlike, match="does not say on which machine"):
        compare_builds(*sides)


def test_folders_of_before_the_method_was_recorded_are_alike_of_one_commit_only(
    root: Path, tmp_path: Path
) -> None:
    def forget(run: SweepRun) -> None:
        run.method = None
        run.environment.pop("method")

    sides = [shutil.copytree(root / name, tmp_path / name) for name in ("old", "same")]
    for side in sides:
        edit_run(side, forget)
    with pytest.raises(Unlike, match="method: not recorded"):
        compare_builds(*sides)
    edit_run(sides[1], lambda run: run.environment.update(commit="a" * 12))
    assert compare_builds(*sides).forced == []


def test_a_sweep_with_a_failed_gate_is_refused(root: Path, tmp_path: Path) -> None:
    bad = made(tmp_path / "bad", fail=1)
    with pytest.raises(Unlike, match=r"failed gates of .*no errors"):
        compare_builds(root / "old", bad)


def test_sweeps_of_two_builds_in_one_folder_are_refused(root: Path, tmp_path: Path) -> None:
    mixed = shutil.copytree(root / "before", tmp_path / "mixed")
    edit_run(mixed / "1", lambda run: run.environment.update(commit="d" * 12))
    with pytest.raises(Unlike, match="not of one build"):
        compare_builds(mixed, root / "after")


def test_cells_that_only_one_side_has_are_named(root: Path, tmp_path: Path) -> None:
    plan = make_plan("quick", 1, ["eager", "compiled"], [1])
    few = tmp_path / "few"
    make_results(few, plan=plan)
    found = compare_builds(root / "old", few)
    assert len(found.cells) == 2
    assert set(found.left_out.values()) == {f"only in {root / 'old'}"}


def test_too_few_rounds_in_a_single_sweep_are_left_out_with_the_reason(root: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    make_results(short, plan=msgspec.structs.replace(PLAN, rounds=5, rounds_most=5))
    with pytest.raises(Unlike, match="5 rounds, at least 8"):
        compare_builds(root / "old", short)


def test_the_verb_begins_with_the_verdict_and_ends_with_one_json_line(root: Path) -> None:
    done = run(root, str(root / "before"), str(root / "late"), "--fail-if-slower", "5%")
    lines = done.stdout.strip().splitlines()
    assert done.exit_code == 1
    assert lines[0].startswith("Slower by more than 5.00 %, beyond doubt; 2 of 6 cells slower: compiled b=")
    found = json.loads(lines[-1])
    assert (found["decision"], found["unit"], len(found["cells"])) == ("slower", "pairs of sweeps", CELLS)
    worst = next(one for one in found["cells"] if one["mode"] == "compiled")
    assert worst["ratio"]["low"] > 1.05
    assert worst["ratio"]["value"] == pytest.approx(1.2, rel=0.05)
    assert worst["after_seconds"] > worst["before_seconds"]
    assert "4 pairs of sweeps" in done.stdout
    assert "smallest slow-down that 80 % of such comparisons find" in done.stdout


def test_what_looks_like_markup_is_shown_on_a_terminal() -> None:
    stream = io.StringIO()
    Console(file=stream, width=80).print(as_rich(Table("[title]", ["[head]"], [[Text("[cell]")]], "[note]")))
    assert re.findall(r"\[\w+]", stream.getvalue()) == ["[title]", "[head]", "[cell]", "[note]"]


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
