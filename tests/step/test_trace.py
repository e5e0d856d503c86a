"""What is read from a profiler trace: operators, kernels, launches, gaps, each in its own step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import record_function

from service.step.trace import STEP_MARK, operator_table, read_steps
from tests.step.made_traces import call, event, kernel

TWO_STEPS = [
    event("cuda_runtime", "cudaLaunchKernel", -20, 5, 5),
    event("kernel", "separates", -12, 2, 5),
    event("user_annotation", f"{STEP_MARK} prefill 16/64", 0, 100),
    event("cpu_op", "aten::linear", 1, 20),
    event("cpu_op", "aten::mm", 2, 15),
    event("cpu_op", "aten::copy_", 3, 2),
    event("cuda_runtime", "cudaLaunchKernel", 5, 5, 7),
    event("cpu_op", "aten::add", 30, 10),
    event("cuda_runtime", "cudaLaunchKernel", 60, 10, 8),
    event("kernel", "gemm", 12, 20, 7),
    event("kernel", "add", 75, 5, 8),
    event("cuda_runtime", "cudaLaunchKernel", 120, 5, 6),
    event("kernel", "separates", 130, 2, 6),
    event("user_annotation", f"{STEP_MARK} decode 1/64", 200, 50),
    event("cpu_op", "Torch-Compiled Region: 0/0", 201, 40),
    event("cuda_runtime", "cudaGraphLaunch", 205, 10, 9),
    *(event("kernel", f"k{n}", 220 + 10 * n, 6, 9) for n in range(3)),
    event("cuda_runtime", "cudaEventRecord", 216, 1, 10),
]


def test_a_kernel_belongs_to_the_step_that_launched_it_even_where_it_runs_after_it() -> None:
    first, second = read_steps(TWO_STEPS, cuda=True)
    assert (first.kernels, second.kernels) == (2, 3)
    assert first.kernel_seconds == pytest.approx(25e-6)
    assert second.kernel_seconds == pytest.approx(18e-6)


def test_a_graph_replay_of_many_kernels_is_one_launch() -> None:
    first, second = read_steps(TWO_STEPS, cuda=True)
    assert (first.launches, first.graph_launches) == (2, 0)
    assert (second.launches, second.graph_launches) == (1, 1)


def test_operators_are_outermost_calls_into_the_dispatcher_and_copies_all_copies() -> None:
    first, second = read_steps(TWO_STEPS, cuda=True)
    assert (first.operators, first.copies) == (2, 1)
    assert second.operators == 0


def test_idle_gaps_are_split_into_waiting_for_the_host_and_waiting_to_start() -> None:
    first, second = read_steps(TWO_STEPS, cuda=True)
    assert first.gaps is not None
    assert first.gaps.host_wait_seconds == pytest.approx(38e-6)  # from 32 until its launch returned at 70
    assert first.gaps.kernel_wait_seconds == pytest.approx(5e-6)
    assert first.gaps.idle_seconds == pytest.approx(43e-6)
    assert second.gaps is not None
    assert second.gaps.host_wait_seconds == 0.0
    assert second.gaps.kernel_wait_seconds == pytest.approx(8e-6)


def test_a_gap_in_a_graph_whose_launch_has_not_returned_is_idle_time_of_no_known_cause() -> None:
    events = [
        call("cudaLaunchKernel", -20, 4),
        kernel("separates", -12, 4),
        event("user_annotation", STEP_MARK, 0, 60),
        call("cudaGraphLaunch", 1, 5, 40.0),
        kernel("a", 10, 5, length=10),
        kernel("b", 25, 5, length=25),
        kernel("c", 52, 5, length=5),
    ]
    (step,) = read_steps(events, cuda=True)
    assert step.gaps is not None
    assert step.gaps.idle_seconds == pytest.approx(7e-6)
    assert step.gaps.host_wait_seconds is step.gaps.kernel_wait_seconds is None


def test_without_a_device_there_are_no_kernels_rather_than_none_of_them() -> None:
    step = read_steps(TWO_STEPS, cuda=False)[0]
    assert step.kernels is step.launches is step.kernel_seconds is step.gaps is step.unknown is None


def test_self_time_leaves_out_what_an_operator_called() -> None:
    table = {row["name"]: row for row in operator_table(TWO_STEPS)}
    assert table["aten::linear"]["self_seconds"] == pytest.approx(5e-6)
    assert table["aten::mm"]["self_seconds"] == pytest.approx(13e-6)
    assert "Torch-Compiled Region: 0/0" not in table


def test_a_recorded_trace_has_the_operators_that_ran(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as session:
        for _ in range(2):
            with record_function(STEP_MARK):
                torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2))
                torch.ones(3).clone()
    path = tmp_path / "trace.json"
    session.export_chrome_trace(str(path))
    steps = read_steps(json.loads(path.read_text())["traceEvents"], cuda=False)
    assert len(steps) == 2
    # Two tensors of ones for the product, the product, one more and its clone.
    assert {step.operators for step in steps} == {5}
    assert {step.copies for step in steps} == {1}
