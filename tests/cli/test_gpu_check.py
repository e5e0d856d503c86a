"""The arithmetic and the verdict of `make gpu-check`, on outcomes as a GPU would send them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from service.cli.gpu_check import BATCHES, ROUNDS, cell_rows, conclude, jobs
from service.protocol.messages import Outcome
from service.protocol.modes import default_modes
from service.protocol.timings import PhaseTimings, StepProfile, Timings


def outcome(mode: str, batch: int, step_seconds: float, profile: list[StepProfile] | None = None) -> Outcome:
    phase = PhaseTimings(
        steps=10,
        wall_seconds=step_seconds * 10,
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
    assert row["step_us"] == pytest.approx(1000)
    assert row["speedup"] == pytest.approx(2.0)
    assert (row["kernels"], row["launches"]) == (90, 1)
    assert row["kernel_us"] == pytest.approx(400)


@pytest.mark.parametrize(
    ("launches", "state", "problems", "code"),
    [
        ({8: 1.0}, "ready", [], 0),
        ({8: 0.0}, "ready", [], 1),
        ({}, "ready", [], 1),
        ({8: 1.0}, "failed", [], 1),
        ({8: 1.0}, "ready", ["broken"], 1),
    ],
)
def test_it_passes_only_with_parity_and_one_graph_launch_per_step(
    launches: dict[int, float], state: str, problems: list[str], code: int
) -> None:
    result = {"rows": rows(), "modes": {"bfloat16 eager": {"state": state, "detail": None}}}
    console = Console(file=io.StringIO(), width=120)
    assert conclude({**result, "graph_launches": launches, "problems": problems}, console) == code


def test_every_cell_is_visited_once_per_round_and_profiled_once() -> None:
    work = list(jobs())
    assert len(work) == (ROUNDS + 1) * len(default_modes()) * len(BATCHES)
    assert sum(job.profile for job in work) == len(default_modes()) * len(BATCHES)
    assert len({job.id for job in work}) == len(work)
