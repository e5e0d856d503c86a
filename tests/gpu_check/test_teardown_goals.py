"""Verdicts on a profiler that lets go: graphs that compute something else after it fail the check."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from service.gpu_check.check import Checked, conclude
from service.gpu_check.goal import Goal
from service.gpu_check.rows import Rows
from service.gpu_check.runner import Ended
from service.gpu_check.teardown_goals import teardown_goals

MODES = ("reduce-overhead", "cuda-graph")
SAME = "logits after a profiler let go, as before it"

MadeRows = list[dict[str, Any]]


def made_rows() -> MadeRows:
    rows: MadeRows = [{"kind": "plan", "modes": list(MODES), "sessions": 3}]
    for sessions in range(4):
        launches = 5 if sessions else None
        for mode in MODES:
            fields = {"mode": mode, "sessions": sessions, "launches": launches, "dispatch_seconds": 2e-5}
            rows.append({"kind": "let_go", **fields, "same": True})
    return rows + [{"kind": "made_after", "mode": mode, "same": True} for mode in MODES]


def judged(change: Callable[[MadeRows], object] = lambda rows: None) -> dict[str, Goal]:
    rows = made_rows()
    change(rows)
    return {goal.name: goal for goal in teardown_goals({"teardown": rows})}


def test_good_rows_meet_every_goal() -> None:
    found = judged()
    assert len(found) == 1 + len(MODES)
    assert {goal.verdict for goal in found.values()} == {"met"}


@pytest.mark.parametrize(
    ("change", "verdict", "shown"),
    [
        (lambda rows: rows[4].update(same=False), "missed", "others: cuda-graph after 1"),
        (lambda rows: rows[-1].update(same=False), "missed", "others: cuda-graph made after all"),
        (lambda rows: rows.pop(), "unknown", "not measured"),
        (lambda rows: rows.clear(), "unknown", "not measured"),
        (lambda rows: rows[4].update(launches=0), "unknown", "a session recorded no launch"),
    ],
)
def test_what_is_computed_after_a_profiler_let_go_decides(
    change: Callable[[MadeRows], object], verdict: str, shown: str
) -> None:
    goal = judged(change)[SAME]
    assert goal.verdict == verdict
    assert goal.found.startswith(shown)
    assert not goal.holds


def test_dispatch_that_does_not_come_back_only_informs() -> None:
    goal = judged(lambda rows: rows[-3].update(dispatch_seconds=4.8e-5))[
        "cuda-graph: dispatch after sessions that let go over before"
    ]
    assert (goal.verdict, goal.found, goal.holds) == ("missed", "2.400", True)


@pytest.mark.parametrize(("same", "code"), [(True, 0), (False, 1)])
def test_part_2_fails_where_a_graph_computes_something_else(tmp_path: Path, same: bool, code: int) -> None:
    rows = Rows(tmp_path / "teardown.jsonl")
    for row in made_rows():
        rows.write(**row)
    if not same:
        rows.write("made_after", mode=MODES[0], same=False)
    ended = [Ended("teardown", "done", "", 1.0, 11, 0)]
    out = io.StringIO()
    found = conclude(
        Checked(0.0, 1.0, cold=True, ended=ended, unwatched=None), tmp_path, 2, Console(file=out, width=150)
    )
    assert found == code
    assert SAME in out.getvalue()
