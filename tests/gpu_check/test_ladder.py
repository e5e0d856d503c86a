"""The ladder section: its jobs, and its cells from outcomes as a GPU would send them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.gpu_check.rows import Rows, read_rows
from service.gpu_check.sections.ladder import BATCHES, ROUNDS, _watch, cell_rows, jobs, modes
from service.protocol.messages import Outcome, Output
from service.protocol.status import ModeStatus
from service.protocol.timings import PhaseTimings, StepProfile, Timings


def outcome(mode: str, batch: int, step_seconds: float, profile: list[StepProfile] | None = None) -> Outcome:
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
        id=f"{mode}-{batch}",
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
    StepProfile(phase="decode", steps=10, operators=3, copies=0, kernels=90, launches=1, kernel_seconds=4e-4)
]


def rows() -> list[dict[str, Any]]:
    outcomes = [outcome("eager", 8, seconds) for seconds in (2e-3, 2.2e-3, 1.9e-3)]
    outcomes += [outcome("reduce-overhead", 8, seconds) for seconds in (1e-3, 1.1e-3, 0.95e-3)]
    return cell_rows([*outcomes, outcome("reduce-overhead", 8, 1.0, PROFILE)])


def test_a_profiled_job_gives_kernels_but_no_latency() -> None:
    row = next(row for row in rows() if row["mode"] == "reduce-overhead")
    assert row["step_seconds"] == pytest.approx(1e-3)
    assert row["speedup"] == pytest.approx(2.0)
    assert (row["kernels"], row["launches"]) == (90, 1)
    assert row["kernel_seconds"] == pytest.approx(4e-4)


def test_without_a_profiled_job_kernels_are_unknown() -> None:
    row = next(row for row in rows() if row["mode"] == "eager")
    assert (row["kernels"], row["kernel_seconds"], row["launches"]) == (None, None, None)


def test_every_cell_is_visited_once_per_round_and_profiled_once() -> None:
    work = list(jobs())
    assert len(work) == (ROUNDS + 1) * len(modes()) * len(BATCHES)
    assert sum(job.profile for job in work) == len(modes()) * len(BATCHES)
    assert len({job.id for job in work}) == len(work)


def test_modes_and_jobs_are_rows_at_once_without_the_texts(tmp_path: Path) -> None:
    file = Rows(tmp_path / "ladder.jsonl")
    _watch(file, ModeStatus(mode="eager", removes="nothing", state="cold", effective="eager"))
    _watch(file, ModeStatus(mode="eager", removes="nothing", state="ready", effective="eager"))
    _watch(file, outcome("eager", 8, 2e-3))
    found, garbage = read_rows(file.path)
    assert [(row["kind"], row["mode"]) for row in found] == [("mode", "eager"), ("job", "eager")]
    assert garbage == 0
    assert "a text" not in json.dumps(found)
    assert found[1]["timings"]["decode"]["steps"] == 10
