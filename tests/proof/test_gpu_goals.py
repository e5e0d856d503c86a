"""Cells, goals and tables from records as a GPU would write them: each goal met, missed and unknown."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from service.proof import gpu_goals
from service.proof.gpu_check import Checked, Ended, conclude
from service.proof.gpu_sections import watch
from service.records import Outcome, Output, PhaseTimings, StepProfile, Timings

Rows = dict[str, list[dict[str, Any]]]
STARTED = 1000.0
UNKNOWN = "not measurable here"


def session(number: int, by_window: float = 4e-4) -> dict[str, Any]:
    seconds = {"busy_seconds_by_window": [by_window] * 5, "span_seconds_by_window": [5e-4] * 5}
    return {"kind": "session", "at": 1100.0, "session": number, **seconds}


def mode(name: str, state: str = "ready") -> dict[str, Any]:
    return {"kind": "mode", "at": 1200.0, "mode": name, "state": state, "effective": name, "reason": None}


def cell(batch: int) -> dict[str, Any]:
    named = {"kind": "cell", "at": 1250.0, "mode": "reduce-overhead", "effective": "reduce-overhead"}
    seconds = {"step_seconds": 6e-4, "dispatch_seconds": 9e-5, "span_seconds": 5e-4, "kernel_seconds": 4e-4}
    counts = {"kernels": 90, "launches": 2, "graph_launches": 1}
    return {**named, "batch": batch, **seconds, **counts, "speedup": 3.0, "low": 2.9, "high": 3.1}


GOOD: Rows = {
    "device": [{"kind": "versions", "at": 1012.0}],
    "profiler": [
        {"kind": "unprofiled", "at": 1090.0, "queued_seconds": 5e-4, "upper_bound": False},
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


def judged(change: Callable[[Rows], None] = lambda rows: None) -> dict[str, gpu_goals.Goal]:
    rows = deepcopy(GOOD)
    change(rows)
    return {goal.name: goal for goal in gpu_goals.goals_of(rows, STARTED)}


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


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        (replace("device", "versions", at=1070.0), "first result on disk", "fail"),
        (replace("ladder", "mode", state="failed"), "parity with eager, bfloat16", "fail"),
        (replace("tests", "test", outcome="failed"), "tests/gpu", "fail"),
        (replace("tests", "collected", count=2), "tests/gpu", "fail"),
        (replace("ladder", "plan", modes=["eager", "compiled"]), "parity with eager, bfloat16", "fail"),
        (replace("ladder", "mode", effective="compiled", reason="skipped"), REPLAYS, "fail"),
        (replace("ladder", "mode", reason="graph replay is not proved"), REPLAYS, "fail"),
        (lambda rows: rows["ladder"].append(mode("reduce-overhead", "failed")), REPLAYS, "fail"),
        (replace("ladder", "plan", modes=["eager", "cuda-graph"]), REPLAYS, UNKNOWN),
        (replace("ladder", "plan", jobs=2), "jobs of the ladder", "fail"),
        (replace("ladder", "job", outcome="error"), "jobs of the ladder", "fail"),
        (replace("ladder", "plan", batches=[1, 8]), LAUNCHES, UNKNOWN),
        (lambda rows: rows["profiler"].pop(), WINDOWS, UNKNOWN),
        (replace("ladder", "cell", graph_launches=0), LAUNCHES, "fail"),
        (replace("ladder", "cell", launches=3), OTHERS, "fail"),
        (replace("profiler", "instrumentation", low=1.02, high=1.05), INSTRUMENTATION, "fail"),
        (replace("profiler", "instrumentation", high=1.03), INSTRUMENTATION, "undecided"),
        (replace("profiler", "unprofiled", queued_seconds=6e-4), QUEUED, "fail"),
        (replace("profiler", "unprofiled", queued_seconds=3.7e-4), BUSY, "fail"),
        (lambda rows: rows["profiler"].append(session(4) | SHORT), QUEUED, "fail"),
        (replace("profiler", "unprofiled", upper_bound=True), BUSY, UNKNOWN),
        (replace("profiler", "session", busy_seconds_by_window=[None] * 5), BUSY, UNKNOWN),
        (lambda rows: rows["profiler"].append(session(4, by_window=3e-4)), WINDOWS, "fail"),
    ],
)
def test_a_goal_that_is_not_met_decides(change: Callable[[Rows], None], name: str, verdict: str) -> None:
    goal = judged(change)[name]
    assert goal.verdict == verdict
    assert not goal.holds


# Cells, from outcomes as a GPU would send them


def outcome(
    mode: str, batch: int, number: int, step_seconds: float, profile: list[StepProfile] | None = None
) -> Outcome:
    phase = PhaseTimings(
        steps=10, wall_seconds=step_seconds * 9, period_seconds=step_seconds * 10, kernel_seconds=None,
        dispatch_seconds=step_seconds * 4, device_span_seconds=step_seconds * 9,
        sync_wait_seconds=step_seconds * 6,
    )  # fmt: skip
    timings = Timings(
        queue_seconds=0, prefill=phase, decode=phase, tokenise_seconds=0, involuntary_switches=0,
        dispatch_source="measured", kernel_source=None, taken_ns=0, first_token_ns=1, done_ns=2,
    )  # fmt: skip
    return Outcome(
        id=f"{mode}-{batch}-{number}", mode=mode, effective=mode, reason=None, kind="ok", batch_size=batch,
        batch_bucket=batch, outputs=[Output(text="a text", token_ids=[1], finish_reason="length")],
        timings=timings, profile=profile,
    )  # fmt: skip


PROFILE = [
    StepProfile(
        phase="decode",
        steps=10,
        operators=3,
        kernels=90,
        launches=1,
        graph_launches=1,
        kernel_seconds=4e-4,
    )
]
EAGER = (2e-3, 2.2e-3, 1.9e-3)
REPLAYED = (1e-3, 1.1e-3, 0.95e-3)


def cells(folder: Path, outcomes: list[Outcome]) -> dict[str, dict[str, Any]]:
    """The cells, by mode, of a section that was killed behind these outcomes."""
    file = gpu_goals.Records(folder / "ladder.jsonl")
    file.write("plan", modes=["eager", "reduce-overhead"], batches=[8], jobs=18)
    for one in outcomes:
        watch(file, one)
    return {cell["mode"]: cell for cell in gpu_goals.cells_of(gpu_goals.read_records(file.path))}


def timed(mode: str, seconds: Sequence[float]) -> list[Outcome]:
    return [outcome(mode, 8, number, one) for number, one in enumerate(seconds, gpu_goals.PROFILED_ROUND + 1)]


def test_a_profiled_job_gives_kernels_but_no_latency(tmp_path: Path) -> None:
    profiled = outcome("reduce-overhead", 8, gpu_goals.PROFILED_ROUND, 1.0, PROFILE)
    found = cells(tmp_path, [profiled, *timed("eager", EAGER), *timed("reduce-overhead", REPLAYED)])
    row = found["reduce-overhead"]
    assert row["step_seconds"] == pytest.approx(1e-3)
    assert row["speedup"] == row["low"] == row["high"] == pytest.approx(2.0)
    assert (row["kernels"], row["launches"], row["graph_launches"], row["rounds"]) == (90, 1, 1, 3)
    assert row["kernel_seconds"] == pytest.approx(4e-4)


def test_rounds_are_paired_by_their_number_whichever_is_missing(tmp_path: Path) -> None:
    second = timed("reduce-overhead", REPLAYED[:2])[1:]
    row = cells(tmp_path, [*timed("eager", EAGER), *second])["reduce-overhead"]
    assert row["speedup"] == pytest.approx(2.0)
    assert (row["low"], row["high"]) == (None, None)


@pytest.mark.parametrize("broken", [{"steps": 0}, {"steps": None}])
def test_a_job_without_steps_or_numbers_costs_no_other_its_cell(
    tmp_path: Path, broken: dict[str, Any]
) -> None:
    cells(tmp_path, [*timed("eager", EAGER), outcome("reduce-overhead", 8, 1, 1e-3)])
    rows = gpu_goals.read_records(tmp_path / "ladder.jsonl")
    rows[-1]["timings"]["decode"] |= broken
    assert [cell["mode"] for cell in gpu_goals.cells_of(rows)] == ["eager"]


def test_the_summary_has_the_cells_of_a_section_that_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "check"
    folder.mkdir()
    cells(folder, timed("eager", EAGER))
    killed = Checked(0.0, 1.0, True, [Ended("ladder", "timed out", "", 1.0, 4)], None)
    out = io.StringIO()
    assert conclude(killed, folder, None, Console(file=out, width=150)) == 1
    (cell,) = json.loads((folder / "summary.json").read_text())["cells"]
    assert (cell["mode"], cell["rounds"], cell["speedup"]) == ("eager", 3, 1.0)
    assert "eager" in out.getvalue()


# Sizes, from what a section wrote that served a larger model


REPLAY = "reduce-overhead"
STEP_BYTES = {"weights": 2.5e8, "cache_per_position": 0, "activations_per_row": 0}


Served = list[dict[str, Any]]


def served(model: str, device: float, wall: float, card: str = "NVIDIA H100 80GB HBM3") -> Served:
    """The records of a section that served one mode at batch 1, whose steps read 250 MB."""
    ended = msgspec.to_builtins(outcome(REPLAY, 1, 1, wall))
    time = {"phase": "decode", "batch": 1, "seconds": device, "upper_bound": False}
    sizes = {"step_bytes": STEP_BYTES, "memory_bandwidth": {"bytes_per_second": 2.5e12}}
    return [
        {"kind": "plan", "model": model, "modes": [REPLAY], "batches": [1], "positions": 61},
        {**mode(REPLAY), "device_times": [{**time, "phase": "prefill", "seconds": 9.0}, time]},
        {"kind": "engine", "dtype": "bfloat16", "device_name": card, **sizes},
        {**ended, "kind": "job", "outcome": ended["kind"]},
    ]


@pytest.mark.parametrize(
    ("small", "base", "verdicts", "notes"),
    [
        (
            served("small", 3e-4, 3.4e-4),
            served("base", 1.2e-4, 2e-4),
            ["pass", "pass", "pass"],
            ["0.300 ms", "0.340 ms", "62%; 83% of the measured copy bandwidth"],
        ),
        (
            served("small", 3.1e-4, 3.5e-4),
            served("base", 2e-4, 2e-4),
            ["fail", "fail", "fail"],
            ["0.310", "0.350", "37%"],
        ),
        (
            [],
            served("base", 2e-4, 2e-4, "NVIDIA L4"),
            [UNKNOWN, UNKNOWN, UNKNOWN],
            ["not measured", "not measured", "NVIDIA L4 is not in the table; 50% of the measured copy"],
        ),
        (
            served("small", 2e-4, 3e-4)[:3],
            [],
            ["pass", UNKNOWN, UNKNOWN],
            ["0.200", "not measured", "not measured"],
        ),
    ],
)
def test_goals_of_larger_models_are_of_device_and_wall_and_only_inform(
    small: Served, base: Served, verdicts: list[str], notes: list[str]
) -> None:
    goals = gpu_goals.size_goals([*gpu_goals.sizes_of(small), *gpu_goals.sizes_of(base)])
    assert [goal.verdict for goal in goals] == verdicts
    assert [(goal.note or "").startswith(note) for goal, note in zip(goals, notes, strict=True)] == [True] * 3
    assert all(goal.holds for goal in goals)


def test_the_summary_of_part_2_has_the_sizes_and_their_goals(tmp_path: Path) -> None:
    file = gpu_goals.Records(tmp_path / "check" / "base.jsonl")
    file.path.parent.mkdir()
    for row in served("base", 1.2e-4, 2e-4):
        file.write(**{name: value for name, value in row.items() if name != "at"})
    checked = Checked(0.0, 1.0, True, [Ended("base", "done", "", 1.0, 4)], None)
    out = io.StringIO()
    assert conclude(checked, tmp_path / "check", 2, Console(file=out, width=250)) == 0
    summary = json.loads((tmp_path / "check" / "summary.json").read_text())
    (size,) = summary["sizes"]
    assert (size["model"], size["tokens_per_second"]) == ("base", pytest.approx(5000))
    assert [goal["verdict"] for goal in summary["goals"]] == [UNKNOWN, UNKNOWN, "pass"]
    assert "62%; 83% of the measured copy bandwidth" in out.getvalue()
