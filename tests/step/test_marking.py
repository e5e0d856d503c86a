"""Marks around steps: their names, where the profiler's end, and NVTX ranges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from service.step.meters import (
    FETCH_MARK,
    HostMeter,
    NvtxMeter,
    ProfilingMeter,
    Readings,
    step_name,
    with_nvtx,
)
from service.step.trace import STEP_MARK, is_step_mark
from tests.step.made_steps import arguments, step
from tests.step.made_traces import event

CPU = torch.device("cpu")


def failing_step(*_: object) -> tuple[Tensor, Tensor]:
    raise RuntimeError("step")


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was pushed and popped, in order."""
    seen: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", seen.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append("end"))
    return seen


def test_a_marks_name_has_the_phase_and_the_shape_and_is_recognised_as_a_steps() -> None:
    decode, prefill = step_name(arguments(1, 64)), step_name(arguments(16, 128))
    assert (decode, prefill) == (f"{STEP_MARK} decode 1/64", f"{STEP_MARK} prefill 16/128")
    for name in (STEP_MARK, decode, prefill):
        assert is_step_mark(event("user_annotation", name, 0, 1))
        assert not is_step_mark(event("gpu_user_annotation", name, 0, 1))
    assert not is_step_mark(event("user_annotation", f"{STEP_MARK}s", 0, 1))


def test_the_profiler_is_ended_once_before_the_first_step_that_is_too_many() -> None:
    ends: list[int] = []
    readings = Readings()
    meter = ProfilingMeter(HostMeter(), lambda: ends.append(readings.steps), most=2)
    for _ in range(4):
        meter.run(step, arguments(1, 64), readings)
    meter.end()
    assert (ends, readings.steps) == ([2], 4)


def test_a_request_of_few_steps_ends_the_profiler_itself() -> None:
    ends: list[int] = []
    meter = ProfilingMeter(HostMeter(), lambda: ends.append(1), most=2)
    meter.run(step, arguments(1, 64), Readings())
    assert ends == []
    meter.end()
    assert ends == [1]


def test_nvtx_ranges_enclose_each_step_by_phase_and_each_wait(ranges: list[str]) -> None:
    meter, readings = NvtxMeter(HostMeter()), Readings()
    meter.run(step, arguments(16, 64), readings)
    assert meter.fetch(torch.tensor([3]), readings) == [3]
    meter.run(step, arguments(1, 64), readings)
    names = [f"{STEP_MARK} prefill 16/64", FETCH_MARK, f"{STEP_MARK} decode 1/64"]
    assert ranges == [part for name in names for part in (name, "end")]
    assert readings.steps == 2


def test_a_range_ends_where_its_step_fails(ranges: list[str]) -> None:
    with pytest.raises(RuntimeError, match="step"):
        NvtxMeter(HostMeter()).run(failing_step, arguments(1, 64), Readings())
    assert ranges[-1] == "end"


def test_without_cuda_nvtx_changes_nothing_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    meter = HostMeter()
    assert with_nvtx(meter, CPU) is meter
    assert "LAUNCHBOUND_NVTX is set, but NVTX ranges need CUDA" in capsys.readouterr().err
    assert isinstance(with_nvtx(meter, torch.device("cuda")), NvtxMeter)
