"""The ladder section: its jobs, and its cells from outcomes as a GPU would send them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from service.proof.gpu_check import Checked, Ended, conclude
from service.proof.gpu_goals import PROFILED_ROUND, Records, cells_of, read_records
from service.proof.gpu_sections import LADDER_BATCHES, LADDER_ROUNDS, jobs, ladder_modes, watch
from service.records import ModeStatus, Outcome, Output, PhaseTimings, StepProfile, Timings


def outcome(
    mode: str, batch: int, number: int, step_seconds: float, profile: list[StepProfile] | None = None
) -> Outcome:
    phase = PhaseTimings(
        steps=10,
        wall_seconds=step_seconds * 9,
        period_seconds=step_seconds * 10,
        dispatch_seconds=step_seconds * 4,
        device_span_seconds=step_seconds * 9,
        kernel_seconds=None,
        sync_wait_seconds=step_seconds * 6,
    )
    timings = Timings(
        queue_seconds=0,
        prefill=phase,
        decode=phase,
        tokenise_seconds=0,
        involuntary_switches=0,
        dispatch_source="measured",
        kernel_source=None,
        taken_ns=0,
        first_token_ns=1,
        done_ns=2,
    )
    return Outcome(
        id=f"{mode}-{batch}-{number}",
        mode=mode,
        effective=mode,
        reason=None,
        kind="ok",
        batch_size=batch,
        batch_bucket=batch,
        outputs=[Output(text="a text", token_ids=[1], finish_reason="length")],
        timings=timings,
        profile=profile,
    )


PROFILE = [
    StepProfile(
        phase="decode",
        steps=10,
        operators=3,
        copies=0,
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
    file = Records(folder / "ladder.jsonl")
    file.write("plan", modes=["eager", "reduce-overhead"], batches=[8], jobs=18)
    for one in outcomes:
        watch(file, one)
    return {cell["mode"]: cell for cell in cells_of(read_records(file.path))}


def timed(mode: str, seconds: Sequence[float]) -> list[Outcome]:
    return [outcome(mode, 8, number, one) for number, one in enumerate(seconds, PROFILED_ROUND + 1)]


def test_a_profiled_job_gives_kernels_but_no_latency(tmp_path: Path) -> None:
    profiled = outcome("reduce-overhead", 8, PROFILED_ROUND, 1.0, PROFILE)
    found = cells(tmp_path, [profiled, *timed("eager", EAGER), *timed("reduce-overhead", REPLAYED)])
    row = found["reduce-overhead"]
    assert row["step_seconds"] == pytest.approx(1e-3)
    assert row["speedup"] == row["low"] == row["high"] == pytest.approx(2.0)
    assert (row["kernels"], row["launches"], row["graph_launches"], row["rounds"]) == (90, 1, 1, 3)
    assert row["kernel_seconds"] == pytest.approx(4e-4)


def test_a_profiled_job_of_which_nothing_was_found_gives_neither(tmp_path: Path) -> None:
    row = cells(tmp_path, [outcome("eager", 8, PROFILED_ROUND, 1.0), *timed("eager", EAGER)])["eager"]
    assert (row["kernels"], row["kernel_seconds"], row["launches"]) == (None, None, None)
    assert row["step_seconds"] == pytest.approx(2e-3)


def test_a_section_that_was_killed_has_the_cells_of_what_it_had_measured(tmp_path: Path) -> None:
    """Behind the second mode's second of eight rounds, where the first has three."""
    found = cells(tmp_path, [*timed("eager", EAGER), *timed("reduce-overhead", REPLAYED[:2])])
    assert (found["eager"]["rounds"], found["reduce-overhead"]["rounds"]) == (3, 2)
    assert found["reduce-overhead"]["speedup"] == pytest.approx(2.0)


def test_rounds_are_paired_by_their_number_whichever_is_missing(tmp_path: Path) -> None:
    second = timed("reduce-overhead", REPLAYED[:2])[1:]
    row = cells(tmp_path, [*timed("eager", EAGER), *second])["reduce-overhead"]
    assert row["speedup"] == pytest.approx(2.0)
    assert (row["low"], row["high"]) == (None, None)


def test_a_section_that_was_killed_in_its_first_round_has_launches_and_no_times(tmp_path: Path) -> None:
    found = cells(tmp_path, [outcome("reduce-overhead", 8, PROFILED_ROUND, 1.0, PROFILE)])
    row = found.pop("reduce-overhead")
    assert found == {}
    assert (row["graph_launches"], row["launches"], row["rounds"]) == (1, 1, 0)
    assert (row["step_seconds"], row["speedup"]) == (None, None)


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


@pytest.mark.parametrize("broken", [{"steps": 0}, {"steps": None}], ids=str)
def test_a_job_without_steps_or_numbers_costs_no_other_its_cell(
    tmp_path: Path, broken: dict[str, Any]
) -> None:
    cells(tmp_path, [*timed("eager", EAGER), outcome("reduce-overhead", 8, 1, 1e-3)])
    rows = read_records(tmp_path / "ladder.jsonl")
    rows[-1]["timings"]["decode"] |= broken
    assert [cell["mode"] for cell in cells_of(rows)] == ["eager"]


def test_a_job_that_failed_is_in_no_cell(tmp_path: Path) -> None:
    failed = replace(outcome("eager", 8, 1, 2e-3), kind="error", timings=None)
    assert cells(tmp_path, [failed]) == {}
    assert cells_of([]) == []


def test_every_cell_is_visited_once_per_round_and_profiled_once_in_the_first() -> None:
    work = list(jobs())
    assert all(job.profile for job in work[: len(ladder_modes()) * len(LADDER_BATCHES)])
    assert len(work) == (LADDER_ROUNDS + 1) * len(ladder_modes()) * len(LADDER_BATCHES)
    assert sum(job.profile for job in work) == len(ladder_modes()) * len(LADDER_BATCHES)
    assert len({job.id for job in work}) == len(work)


def test_modes_and_jobs_are_rows_at_once_without_the_texts(tmp_path: Path) -> None:
    file = Records(tmp_path / "ladder.jsonl")
    watch(file, ModeStatus(mode="eager", removes="nothing", state="cold", effective="eager"))
    watch(file, ModeStatus(mode="eager", removes="nothing", state="ready", effective="eager"))
    watch(file, outcome("eager", 8, 1, 2e-3))
    found = read_records(file.path)
    assert [(row["kind"], row["mode"]) for row in found] == [("mode", "eager"), ("job", "eager")]
    assert "a text" not in json.dumps(found)
    assert found[1]["timings"]["decode"]["steps"] == 10
