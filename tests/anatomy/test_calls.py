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

from service.anatomy import probes
from service.anatomy.operators import calls
from service.anatomy.probes.faults import line_in, line_of, line_of_break, line_that_calls
from service.modes import MODES
from service.statistics.intervals import Interval
from service.step.loaded_model import choose_precision
from service.step.trace import ProfiledStep

NOTICE = (
    "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
)
WAIT = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:150.)"


CUDA = torch.device("cuda")


def test_a_step_has_as_many_waits_as_it_makes_and_the_modes_own_notice_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def set_mode(mode: int | str) -> None:
        seen.append(f"mode {mode}")
        warnings.warn(NOTICE, stacklevel=1)

    def call() -> None:
        seen.append("call")
        for _ in range(2):
            warnings.warn(WAIT, stacklevel=1)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    bench: Any = SimpleNamespace(device=CUDA, synchronise=lambda: seen.append("wait"))
    case: Any = SimpleNamespace(call=call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = calls.reported_waits(bench, case)
    assert ["test_calls.py" in line for line in lines] == [True, True]
    assert seen == ["wait", "mode warn", "call", "mode 0"]


def test_the_kernel_time_of_several_steps_has_an_interval_of_those_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = [3e-3, 1e-3, None, 2e-3, 4e-3, 5e-3, 7e-3, 6e-3]
    steps = [ProfiledStep(3, 0, kernel_seconds=one) for one in seconds]
    monkeypatch.setattr(calls, "profile_steps", lambda *_: steps)
    monkeypatch.setattr(calls, "attach_profiler", lambda _: None)
    bench: Any = SimpleNamespace(device=CUDA, synchronise=lambda: None)
    case: Any = SimpleNamespace(step=None, arguments=None)
    work = calls.device_work(bench, case)
    assert work is not None
    assert work.kernel_seconds == Interval(4e-3, 1e-3, 7e-3, 7)
    assert work.step.kernel_seconds == 4e-3


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
