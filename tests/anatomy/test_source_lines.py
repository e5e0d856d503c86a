"""A line is named by its module, whatever the folder that the module was loaded from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from service.anatomy import probes
from service.anatomy.operators.calls import OperatorRecord, OperatorRecorder, SourceLine, thread_keys
from service.anatomy.probes.faults import line_in, line_of, line_of_break, line_that_calls
from service.protocol.modes import MODES
from service.step.precision import choose_precision

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


def recorded(run: Callable[[], object]) -> list[OperatorRecord]:
    recorder = OperatorRecorder(thread_keys(MODES["no_grad"], CPU, choose_precision("float32", CPU)))
    with recorder:
        run()
    return recorder.seen


@pytest.mark.parametrize("file", [*ELSEWHERE, BESIDE_TORCH])
def test_the_dispatcher_blames_a_probe_wherever_its_file_is(file: str) -> None:
    seen = recorded(run_of(PROBE, file))
    assert line_of(seen[0].schema_name, seen) == "service/anatomy/probes/moved.py:2"


@pytest.mark.parametrize("file", ELSEWHERE)
def test_a_call_is_blamed_on_a_probe_wherever_its_file_is(file: str) -> None:
    assert line_that_calls(torch.zeros, run_of(PROBE, file)) == "service/anatomy/probes/moved.py:2"


@pytest.mark.parametrize("file", ELSEWHERE)
def test_the_compilers_stacks_are_blamed_on_a_probe_wherever_its_file_is(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(PROBE)
    module.__file__ = file
    monkeypatch.setitem(sys.modules, PROBE, module)
    reason = SimpleNamespace(user_stack=[SimpleNamespace(filename=file, lineno=7)])
    assert line_of_break([reason]) == "service/anatomy/probes/moved.py:7"
    assert line_in(f'a guard failed\n  File "{file}", line 9, in run') == "service/anatomy/probes/moved.py:9"


def test_a_line_of_no_probe_is_never_blamed() -> None:
    file = "/srv/service/anatomy/probes/other.py"
    seen = recorded(run_of("vendor.anatomy.other", file))
    with pytest.raises(LookupError):
        line_of(seen[0].schema_name, seen)


def test_a_file_in_a_folder_whose_name_begins_as_torchs_is_not_torchs() -> None:
    (record,) = recorded(run_of("torch_models.layer", BESIDE_TORCH))
    assert str(record.line) == "torch_models/layer.py:2"


def test_packages_that_are_installed_beside_ours_are_not_ours() -> None:
    site_packages = Path(probes.__file__).parents[3]
    line = SourceLine(str(site_packages / "vendor/nn/norm.py"), 3, "vendor.nn.norm")
    assert str(line) == "nn/norm.py:3"


def test_a_package_is_named_by_its_init_file_and_generated_code_as_such() -> None:
    assert str(SourceLine("/opt/x/__init__.py", 1, probes.__name__)) == "service/anatomy/probes/__init__.py:1"
    generated = SourceLine(f"{cache_dir()}/ab/cab.py", 5, "torch._inductor.runtime.compile_tasks.cab")
    assert str(generated) == "generated code:5"


def test_a_line_of_this_file_is_found_by_the_file_alone() -> None:
    code: CodeType = run_of.__code__
    line = SourceLine.in_file(code.co_filename, code.co_firstlineno)
    assert line.module == __name__
    assert line.text.startswith("def run_of(")
