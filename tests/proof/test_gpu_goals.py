"""Verdicts from rows as a GPU would write them: each goal can be met, missed, and unknown."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from service.proof.gpu_check import Checked, Ended, cells_table, conclude, goals_table, sizes_table
from service.proof.gpu_goals import Goal, Records, goals_of, size_goals, teardown_goals

Rows = dict[str, list[dict[str, Any]]]
STARTED = 1000.0
UNKNOWN = "not measurable here"


def session(number: int, by_id: float | None = 4e-4, by_window: float = 4e-4) -> dict[str, Any]:
    return {
        "kind": "session",
        "at": 1100.0,
        "session": number,
        "busy_seconds_by_id": [by_id] * 5,
        "busy_seconds_by_window": [by_window] * 5,
        "span_seconds_by_window": [5e-4] * 5,
    }


def size(model: str, seconds: float, share: float) -> dict[str, Any]:
    interval = {"value": share, "low": share, "high": share}
    return {
        "kind": "size",
        "at": 1300.0,
        "model": model,
        "mode": "reduce-overhead",
        "batch": 1,
        "wall_seconds": seconds * 1.1,
        "dispatch_seconds": 5e-5,
        "device_seconds": seconds,
        "device_roofline": {"share": interval},
    }


def kernels(model: str) -> dict[str, Any]:
    names = {"kind": "kernels", "at": 1310.0, "model": model, "mode": "reduce-overhead", "batch": 1}
    return {**names, "kernels": {"kernels": 120}}


def mode(name: str, state: str = "ready") -> dict[str, Any]:
    return {
        "kind": "mode",
        "at": 1200.0,
        "mode": name,
        "state": state,
        "effective": name,
        "reason": None,
    }


def cell(batch: int) -> dict[str, Any]:
    return {
        "kind": "cell",
        "at": 1250.0,
        "mode": "reduce-overhead",
        "effective": "reduce-overhead",
        "batch": batch,
        "step_seconds": 6e-4,
        "dispatch_seconds": 9e-5,
        "span_seconds": 5e-4,
        "kernel_seconds": 4e-4,
        "kernels": 90,
        "launches": 2,
        "graph_launches": 1,
        "speedup": 3.0,
        "low": 2.9,
        "high": 3.1,
    }


GOOD: Rows = {
    "device": [{"kind": "versions", "at": 1012.0}],
    "profiler": [
        {
            "kind": "unprofiled",
            "at": 1090.0,
            "queued_seconds": 5e-4,
            "dispatch_seconds": 9e-5,
            "upper_bound": False,
        },
        {
            "kind": "unprofiled",
            "at": 1091.0,
            "queued_seconds": 5e-4,
            "dispatch_seconds": 9.1e-5,
            "upper_bound": False,
        },
        {"kind": "instrumentation", "at": 1095.0, "value": 1.004, "low": 1.001, "high": 1.008},
        *(session(number) for number in (1, 2, 3, 4)),
    ],
    "tests": [
        {"kind": "collected", "at": 1140.0, "count": 1},
        {"kind": "test", "at": 1150.0, "outcome": "passed"},
    ],
    "ladder": [
        {"kind": "plan", "at": 1160.0, "modes": ["eager", "reduce-overhead"], "batches": [1], "jobs": 1},
        {"kind": "job", "at": 1240.0, "outcome": "ok"},
        mode("eager", "warming"),
        mode("eager"),
        mode("reduce-overhead"),
        cell(1),
    ],
    "float32": [{"kind": "plan", "at": 1400.0, "modes": ["eager"]}, mode("eager")],
}


SIZES: Rows = {"sizes": [size("small", 2e-4, 0.5), size("base", 9e-4, 0.62), kernels("small")]}


def judged(change: Callable[[Rows], None] = lambda rows: None) -> dict[str, Goal]:
    rows = deepcopy(GOOD)
    change(rows)
    return {goal.name: goal for goal in goals_of(1, rows, STARTED, seconds=450.0, cold=True)}


def test_good_rows_meet_every_goal() -> None:
    assert {goal.verdict for goal in judged().values()} == {"pass"}


@pytest.mark.parametrize("section", GOOD)
def test_what_a_section_did_not_measure_is_unknown_and_never_met(section: str) -> None:
    found = judged(lambda rows: rows.pop(section))
    lost = {name for name, goal in found.items() if goal.verdict != "pass"}
    missing = judged().keys() - found.keys()
    assert lost or missing
    assert not [goal for name, goal in found.items() if name in lost and goal.decides and goal.holds]


def replace(section: str, kind: str, **fields: Any) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        for row in rows[section]:
            if row["kind"] == kind:
                row |= fields

    return change


SHORT = {"span_seconds_by_window": [4.7e-4] * 5}
REPLAYS = "modes that promise graph replay"
LAUNCHES = "reduce-overhead: graph launches per decode step"
OTHERS = "reduce-overhead: other launches per decode step"
INSTRUMENTATION = "instrumentation full / off, decode step"
WINDOWS = "kernels by window, sessions over the first"
BUSY = "a step's kernels by window over queued replays"
QUEUED = "queued replays over a step's span by window"
SPAN = "a step's span by window over queued replays"


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        (replace("device", "versions", at=1070.0), "first result on disk", "fail"),
        (replace("ladder", "mode", state="failed"), "parity with eager, bfloat16", "fail"),
        (replace("float32", "mode", state="failed"), "parity with eager, float32", "fail"),
        (replace("tests", "test", outcome="failed"), "tests/gpu", "fail"),
        (replace("tests", "test", outcome="skipped"), "tests/gpu", "fail"),
        (replace("tests", "collected", count=2), "tests/gpu", "fail"),
        (replace("ladder", "plan", modes=["eager", "compiled"]), "parity with eager, bfloat16", "fail"),
        (replace("ladder", "mode", effective="compiled", reason="skipped"), REPLAYS, "fail"),
        (replace("ladder", "mode", reason="graph replay is not proved"), REPLAYS, "fail"),
        (
            lambda rows: rows["ladder"].append(mode("reduce-overhead", "failed")),
            REPLAYS,
            "fail",
        ),
        (replace("ladder", "plan", modes=["eager", "cuda-graph"]), REPLAYS, UNKNOWN),
        (replace("ladder", "plan", jobs=2), "jobs of the ladder", "fail"),
        (replace("ladder", "job", outcome="error"), "jobs of the ladder", "fail"),
        (replace("ladder", "plan", batches=[1, 8]), LAUNCHES, UNKNOWN),
        (replace("ladder", "plan", batches=[1, 8]), OTHERS, UNKNOWN),
        (lambda rows: rows["profiler"].pop(), WINDOWS, UNKNOWN),
        (lambda rows: rows["profiler"].pop(), BUSY, UNKNOWN),
        (lambda rows: rows["profiler"].pop(), QUEUED, UNKNOWN),
        (replace("ladder", "cell", graph_launches=0), LAUNCHES, "fail"),
        (replace("ladder", "cell", graph_launches=None), LAUNCHES, UNKNOWN),
        (replace("ladder", "cell", launches=3), OTHERS, "fail"),
        (replace("ladder", "cell", launches=None), OTHERS, UNKNOWN),
        (replace("profiler", "instrumentation", low=1.02, high=1.05), INSTRUMENTATION, "fail"),
        (replace("profiler", "instrumentation", high=1.03), INSTRUMENTATION, "undecided"),
        (replace("profiler", "instrumentation", high=None), INSTRUMENTATION, UNKNOWN),
        (replace("profiler", "unprofiled", queued_seconds=6e-4), QUEUED, "fail"),
        (replace("profiler", "unprofiled", queued_seconds=3.7e-4), BUSY, "fail"),
        (lambda rows: rows["profiler"].append(session(4) | SHORT), QUEUED, "fail"),
        (replace("profiler", "unprofiled", upper_bound=True), BUSY, UNKNOWN),
        (replace("profiler", "unprofiled", upper_bound=True), QUEUED, UNKNOWN),
        (replace("profiler", "session", span_seconds_by_window=[None] * 5), QUEUED, UNKNOWN),
        (replace("profiler", "session", busy_seconds_by_window=[None] * 5), BUSY, UNKNOWN),
        (lambda rows: rows["profiler"].append(session(4, by_window=3e-4)), WINDOWS, "fail"),
    ],
)
def test_a_goal_that_is_not_met_decides(change: Callable[[Rows], None], name: str, verdict: str) -> None:
    goal = judged(change)[name]
    assert goal.verdict == verdict
    assert not goal.holds


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (
            lambda rows: rows["profiler"][1].update(dispatch_seconds=2e-4),
            "dispatch after profiler sessions over before",
        ),
        (
            lambda rows: rows["profiler"].append(session(2, by_id=1e-5)),
            "kernels by id over those by window, s",
        ),
    ],
)
def test_speed_and_ids_are_judged_but_only_inform(change: Callable[[Rows], None], name: str) -> None:
    missed = [goal for goal in judged(change).values() if goal.verdict == "fail"]
    assert [goal.name.startswith(name) for goal in missed] == [True]
    assert missed[0].holds


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (replace("sizes", "size", device_seconds=5e-4), "small, bfloat16, batch 1"),
        (replace("sizes", "size", device_roofline={"share": {"value": 0.3}}), "base, bfloat16, batch 1"),
    ],
)
def test_goals_of_larger_models_only_inform(change: Callable[[Rows], None], name: str) -> None:
    assert {goal.verdict for goal in size_goals(SIZES)} == {"pass"}
    assert {goal.verdict for goal in size_goals({})} == {UNKNOWN}
    rows = deepcopy(SIZES)
    change(rows)
    missed = [goal for goal in size_goals(rows) if goal.verdict == "fail"]
    assert [(goal.name.startswith(name), goal.holds) for goal in missed] == [(True, True)]


def test_gaps_that_lengthen_under_the_profiler_are_shown_and_decide_nothing() -> None:
    """As on an H100: a span of 1.12 times the queued replays, whose kernels are 0.88 of them."""
    change = replace("profiler", "session", span_seconds_by_window=[5.6e-4] * 5)
    found = judged(change)
    assert (found[SPAN].verdict, found[SPAN].note) == ("fail", "1.120")
    assert all(goal.holds for goal in found.values())
    assert (found[BUSY].verdict, found[QUEUED].verdict) == ("pass", "pass")


def test_a_mode_that_failed_does_not_count_among_those_that_replay() -> None:
    goal = judged(lambda rows: rows["ladder"].append(mode("reduce-overhead", "failed")))[REPLAYS]
    assert goal.note == "reduce-overhead: failed"


def test_a_warm_check_has_less_time_than_a_cold_one() -> None:
    cold, warm = (
        next(goal for goal in goals_of(1, GOOD, STARTED, 450.0, cold) if goal.name.startswith("all sections"))
        for cold in (True, False)
    )
    assert (cold.verdict, warm.verdict) == ("pass", "fail")


def test_kernels_without_ids_are_unknown_and_not_a_ratio_of_nothing() -> None:
    found = judged(lambda rows: rows["profiler"].append(session(3, by_id=None)))
    assert found["kernels by id over those by window, session 3"].verdict == UNKNOWN


def test_tables_show_what_was_found_and_dashes_for_what_was_not() -> None:
    out = io.StringIO()
    console = Console(file=out, width=150)
    fallen_back = cell(8) | {"effective": "compiled"}
    unknown = dict.fromkeys(("kernel_seconds", "low", "high", "speedup"))
    console.print(cells_table([cell(1) | unknown, fallen_back]))
    console.print(sizes_table(SIZES["sizes"]))
    console.print(goals_table([*judged().values(), *size_goals(SIZES)]))
    text = out.getvalue()
    assert "–" in text
    assert "reduce-overhead (ran compiled)" in text
    assert "62%" in text
    assert "120" in text
    assert "stretch reached" in text
    assert "1.004 [1.001, 1.008]" in text
    assert "pass (informs)" in text


# A profiler that lets go: graphs that compute something else after it fail the check

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


def of_teardown(change: Callable[[MadeRows], object] = lambda rows: None) -> dict[str, Goal]:
    rows = made_rows()
    change(rows)
    return {goal.name: goal for goal in teardown_goals({"teardown": rows})}


def test_graphs_that_outlive_a_profiler_meet_every_goal() -> None:
    found = of_teardown()
    assert len(found) == 1 + len(MODES)
    assert {goal.verdict for goal in found.values()} == {"pass"}


@pytest.mark.parametrize(
    ("change", "verdict", "shown"),
    [
        (lambda rows: rows[4].update(same=False), "fail", "others: cuda-graph after 1"),
        (lambda rows: rows[-1].update(same=False), "fail", "others: cuda-graph made after all"),
        (lambda rows: rows.pop(), UNKNOWN, "not measured"),
        (lambda rows: rows.clear(), UNKNOWN, "not measured"),
        (lambda rows: rows[4].update(launches=0), UNKNOWN, "a session recorded no launch"),
    ],
)
def test_what_is_computed_after_a_profiler_let_go_decides(
    change: Callable[[MadeRows], object], verdict: str, shown: str
) -> None:
    goal = of_teardown(change)[SAME]
    assert goal.verdict == verdict
    assert goal.note.startswith(shown)
    assert not goal.holds


def test_dispatch_that_does_not_come_back_only_informs() -> None:
    goal = of_teardown(lambda rows: rows[-3].update(dispatch_seconds=4.8e-5))[
        "cuda-graph: dispatch after sessions that let go over before"
    ]
    assert (goal.verdict, goal.note, goal.holds) == ("fail", "2.400", True)


@pytest.mark.parametrize(("same", "code"), [(True, 0), (False, 1)])
def test_part_2_fails_where_a_graph_computes_something_else(tmp_path: Path, same: bool, code: int) -> None:
    rows = Records(tmp_path / "teardown.jsonl")
    for row in made_rows():
        rows.write(**row)
    if not same:
        rows.write("made_after", mode=MODES[0], same=False)
    ended = [Ended("teardown", "done", "", 1.0, 11)]
    out = io.StringIO()
    found = conclude(
        Checked(0.0, 1.0, cold=True, ended=ended, unwatched=None), tmp_path, 2, Console(file=out, width=150)
    )
    assert found == code
    assert SAME in out.getvalue()
