"""What is read of a call: its line by module, its work on a device, and the waits that CUDA reports."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from service.anatomy import budget, probes
from service.anatomy.operators import calls
from service.anatomy.probes.faults import line_in, line_of, line_of_break, line_that_calls
from service.anatomy.step_times import StepTimes
from service.measure.cases import Bench
from service.modes import MODES
from service.statistics.intervals import Interval
from service.step.buffers import Arguments
from service.step.callables import Step
from service.step.loaded_model import choose_precision
from service.step.trace import ProfiledStep

NOTICE = (
    "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
)
WAIT = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:150.)"


class FakeCuda:
    """The order of waits and calls, and sync debug mode as torch behaves: a notice when it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits: int = 0) -> None:
        self.seen: list[str] = []
        self._waits = waits
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.seen.append("wait"))
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", self._set)

    def _set(self, mode: int | str) -> None:
        self.seen.append(f"mode {mode}")
        warnings.warn(NOTICE, stacklevel=1)

    def bench(self) -> Any:
        return SimpleNamespace(device=torch.device("cuda"), synchronise=torch.cuda.synchronize)

    def case(self) -> Any:
        return SimpleNamespace(
            call=self._call,
            call_seconds=self._call,
            buffers=SimpleNamespace(token=SimpleNamespace(is_cuda=True)),
        )

    def _call(self) -> float:
        self.seen.append("call")
        for _ in range(self._waits):
            warnings.warn(WAIT, stacklevel=1)
        return 1e-4


@pytest.mark.parametrize("waits", [0, 2])
def test_a_step_has_as_many_waits_as_it_makes_and_the_modes_own_notice_is_none(
    monkeypatch: pytest.MonkeyPatch, waits: int
) -> None:
    fake = FakeCuda(monkeypatch, waits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = calls.reported_waits(fake.bench(), fake.case())
    assert len(lines) == waits
    assert all("test_calls.py" in line for line in lines)
    assert fake.seen == ["wait", "mode warn", "call", "mode 0"]


class FakeProfiler:
    """Finds a step per value of `seconds` (None: unknown kernels); notes the lengths it was called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: list[float | None]) -> None:
        self.lengths: list[int] = []
        self._seconds = seconds
        monkeypatch.setattr(calls, "profile_steps", self._steps)
        monkeypatch.setattr(calls, "attach_profiler", lambda _: None)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def _steps(self, step: Step, arguments: Arguments, count: int) -> list[ProfiledStep]:
        self.lengths.append(arguments[0].shape[1])
        return [
            ProfiledStep(3, 0, kernel_seconds=one, unknown=None if one else "lost")
            for one in self._seconds[:count]
        ]


@pytest.fixture
def cuda_bench(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench on a CPU that says that it is on CUDA."""
    monkeypatch.setattr(bench, "device", torch.device("cuda"))
    return bench


def test_the_kernel_time_of_several_steps_has_an_interval_which_a_budget_keeps(
    monkeypatch: pytest.MonkeyPatch, cuda_bench: Bench
) -> None:
    FakeProfiler(monkeypatch, [3e-3, 1e-3, None, 2e-3, 4e-3, 5e-3, 7e-3, 6e-3])
    case = cuda_bench.case("inference_mode", 1)
    work = calls.device_work(cuda_bench, case)
    assert work is not None
    assert work.kernel_seconds == Interval(4e-3, 1e-3, 7e-3, 7)
    assert work.step.kernel_seconds == 4e-3
    times = StepTimes(walls=[1e-2] * 6, hosts=[1e-3] * 6)
    assert budget._split(cuda_bench, ("inference_mode", 1), case, times).kernel == work.kernel_seconds


CPU = torch.device("cpu")
PROBE = f"{probes.__name__}.moved"
ELSEWHERE = ["/opt/wheels/renamed/moved.py", "/srv/torch/service/anatomy/rooms/moved.py"]
BESIDE_TORCH = f"{Path(torch.__file__).parent}_models/layer.py"
"""Begins with the path of torch's own folder, and is not in it."""


def run_of(module: str, file: str) -> Callable[[], object]:
    """A function of `module` that makes a tensor in line 2 of `file`."""
    names: dict[str, Any] = {"__name__": module, "torch": torch}
    exec(compile("def run():\n    return torch.zeros(2)\n", file, "exec"), names)
    run: Callable[[], object] = names["run"]
    return run


def recorded(run: Callable[[], object]) -> list[calls.OperatorRecord]:
    recorder = calls.OperatorRecorder(
        calls.thread_keys(MODES["no_grad"], CPU, choose_precision("float32", CPU))
    )
    with recorder:
        run()
    return recorder.seen


@pytest.mark.parametrize("file", [*ELSEWHERE, BESIDE_TORCH])
def test_a_probe_is_blamed_wherever_its_file_is(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the dispatcher, by Python's own calls, and by the compiler's stacks."""
    run, blamed = run_of(PROBE, file), "service/anatomy/probes/moved.py"
    seen = recorded(run)
    assert line_of(seen[0].schema_name, seen) == line_that_calls(torch.zeros, run) == f"{blamed}:2"
    module = ModuleType(PROBE)
    module.__file__ = file
    monkeypatch.setitem(sys.modules, PROBE, module)
    reason = SimpleNamespace(user_stack=[SimpleNamespace(filename=file, lineno=7)])
    assert line_of_break([reason]) == f"{blamed}:7"
    assert line_in(f'a guard failed\n  File "{file}", line 9, in run') == f"{blamed}:9"
