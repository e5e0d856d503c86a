"""Goals from records as a GPU would write them: each met, missed and unknown."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from service.proof import gpu_goals

Rows = dict[str, list[dict[str, Any]]]
UNKNOWN = "not measurable here"


def session(number: int, by_id: float | None = 4e-4, by_window: float = 4e-4) -> dict[str, Any]:
    busy = {"busy_seconds_by_id": [by_id] * 5, "busy_seconds_by_window": [by_window] * 5}
    return {"kind": "session", "at": 1100.0, "session": number, **busy, "span_seconds_by_window": [5e-4] * 5}


def mode(name: str, state: str = "ready") -> dict[str, Any]:
    return {"kind": "mode", "at": 1200.0, "mode": name, "state": state, "effective": name, "reason": None}


def job(batch: int = 1, outcome: str = "ok", **counts: int | None) -> dict[str, Any]:
    profile = {"phase": "decode", "kernels": 90, "launches": 2, "graph_launches": 1} | counts
    named = {"kind": "job", "at": 1240.0, "mode": "reduce-overhead", "batch_size": batch}
    return {**named, "outcome": outcome, "profile": [profile]}


def unprofiled(dispatch: float) -> dict[str, Any]:
    fields = {"queued_seconds": 5e-4, "dispatch_seconds": dispatch, "upper_bound": False}
    return {"kind": "unprofiled", "at": 1090.0, **fields}


GOOD: Rows = {
    "profiler": [
        unprofiled(9e-5),
        unprofiled(9.1e-5),
        *(session(number) for number in (1, 2, 3, 4)),
    ],
    "tests": [
        {"kind": "collected", "at": 1140.0, "count": 1},
        {"kind": "test", "at": 1150.0, "outcome": "passed"},
    ],
    "ladder": [
        {"kind": "plan", "at": 1160.0, "modes": ["eager", "reduce-overhead"], "batches": [1], "jobs": 1},
        job(),
        mode("eager", "warming"),
        mode("eager"),
        mode("reduce-overhead"),
    ],
    "float32": [{"kind": "plan", "at": 1400.0, "modes": ["eager"]}, mode("eager")],
}


def judged(change: Callable[[Rows], None] = lambda rows: None) -> dict[str, gpu_goals.Goal]:
    rows = deepcopy(GOOD)
    change(rows)
    return {goal.name: goal for goal in gpu_goals.goals_of(rows)}


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


def relaunched(**counts: int | None) -> Callable[[Rows], None]:
    return replace("ladder", "job", profile=job(**counts)["profile"])


SHORT = {"span_seconds_by_window": [4.7e-4] * 5}
REPLAYS = "modes that promise graph replay"
LAUNCHES = "reduce-overhead: graph launches per decode step"
OTHERS = "reduce-overhead: other launches per decode step"
WINDOWS = "kernels by window, sessions over the first"
BUSY = "a step's kernels by window over queued replays"
QUEUED = "queued replays over a step's span by window"


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        (replace("ladder", "mode", state="failed"), "parity with eager, bfloat16", "fail"),
        (replace("float32", "mode", state="failed"), "parity with eager, float32", "fail"),
        (replace("tests", "test", outcome="failed"), "tests/gpu", "fail"),
        (replace("tests", "test", outcome="skipped"), "tests/gpu", "fail"),
        (replace("tests", "collected", count=2), "tests/gpu", "fail"),
        (replace("ladder", "plan", modes=["eager", "compiled"]), "parity with eager, bfloat16", "fail"),
        (replace("ladder", "mode", effective="compiled", reason="skipped"), REPLAYS, "fail"),
        (replace("ladder", "mode", reason="graph replay is not proved"), REPLAYS, "fail"),
        (lambda rows: rows["ladder"].append(mode("reduce-overhead", "failed")), REPLAYS, "fail"),
        (replace("ladder", "plan", modes=["eager", "cuda-graph"]), REPLAYS, UNKNOWN),
        (replace("ladder", "plan", jobs=2), "jobs of the ladder", "fail"),
        (replace("ladder", "job", outcome="error"), "jobs of the ladder", "fail"),
        (replace("ladder", "plan", batches=[1, 8]), LAUNCHES, UNKNOWN),
        (replace("ladder", "plan", batches=[1, 8]), OTHERS, UNKNOWN),
        (lambda rows: rows["profiler"].pop(), WINDOWS, UNKNOWN),
        (lambda rows: rows["profiler"].pop(), BUSY, UNKNOWN),
        (lambda rows: rows["profiler"].pop(), QUEUED, UNKNOWN),
        (relaunched(graph_launches=0), LAUNCHES, "fail"),
        (relaunched(graph_launches=None), LAUNCHES, UNKNOWN),
        (relaunched(launches=3), OTHERS, "fail"),
        (relaunched(launches=None), OTHERS, UNKNOWN),
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
