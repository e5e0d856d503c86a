"""The code that a report shows and that `run --export` writes compiles as the service does for a mode."""

from __future__ import annotations

import time
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, treespec_dumps

from models.export import script_of
from service.modes import MODES, Effect

FACTORY = """
import torch

def build():
    return torch.nn.Linear(4, 2).eval(), lambda batch, seed: (torch.randn(batch, 4),)
"""


class Package:
    """Stands for a loaded package of positional tensors, run as the mode does: calling it takes longer."""

    def __init__(self, program: Any) -> None:
        self._module = program.module()
        self._results = program.call_spec.out_spec
        self.loader = self

    def boxed_run(self, inputs: list[Tensor]) -> list[Tensor]:
        return tree_leaves(self._module(*inputs))

    def get_call_spec(self) -> list[str]:
        return ["", treespec_dumps(self._results)]


class Compiler:
    """Stands for torch's: it returns what it is given, and notes how it was called.

    `frozen` has an entry per compilation: whether torch would freeze, which it does only where grad mode is
    off and the setting is on as it compiles, at the first call of what `torch.compile` returns.
    """

    def __init__(self) -> None:
        self.options: list[dict[str, Any]] = []
        self.frozen: list[bool] = []
        self.calls: list[tuple[bool, bool]] = []

    def compile(self, model: Any, **options: Any) -> Any:
        assert not isinstance(model, nn.Module)  # the call of a compiled module takes longer than the mode's
        self.options.append(options)
        compiled = False

        def run(*inputs: Any, **named: Any) -> Any:
            nonlocal compiled
            if not compiled:
                self._note(torch._inductor.config.freezing)
            compiled = True
            return model(*inputs, **named)

        return run

    def package(self, program: Any, *, inductor_configs: dict[str, Any], package_path: str = "") -> Any:
        self.options.append(inductor_configs)
        self._note(inductor_configs.get("freezing", False))
        return Package(program)

    def _note(self, freezing: bool) -> None:
        self.frozen.append(freezing and not torch.is_grad_enabled())

    def note_call(self, *_: Any) -> None:
        self.calls.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    found = Compiler()
    monkeypatch.setattr(torch, "compile", found.compile)
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", found.package)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda made: made)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: nullcontext(graph.steps.append("capture")))
    graph = SimpleNamespace(steps=[])
    graph.replay = lambda: graph.steps.append("replay")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    return found


def assert_compiled_alike(compiler: Compiler, effect: Effect) -> None:
    options = effect.compile or effect.package
    assert compiler.options == ([] if options is None else [options])
    assert compiler.frozen == ([effect.freezes] if effect.compiles else [])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", MODES)
def test_the_pytorch_of_a_report_does_what_the_mode_does(compiler: Compiler, mode: str, device: str) -> None:
    row, model, x = MODES[mode], nn.Linear(4, 2).eval(), torch.randn(3, 4)
    effect, expected = row.effect(device), model(x)
    called = {"enabled": (True, False), "no_grad": (False, False), "inference_mode": (False, True)}
    model.register_forward_pre_hook(compiler.note_call)
    names: dict[str, Any] = {"torch": torch, "model": model, "x": x}
    exec(effect.in_pytorch(row.grad_mode), names)
    torch.testing.assert_close(names["output"], expected)
    assert_compiled_alike(compiler, effect)
    if effect.package is None:
        assert set(compiler.calls) == {called[row.grad_mode]}
    if effect.captured:
        assert names["graph"].steps == ["capture", "replay"]
        assert len(compiler.calls) == 2  # before the capture, and in it


@pytest.mark.parametrize("mode", [name for name, row in MODES.items() if row.cpu.compiles])
def test_an_exported_program_compiles_and_freezes_as_the_mode_does(
    compiler: Compiler, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text(FACTORY)
    row, seconds = MODES[mode], count(step=0.01)
    script = script_of(f"{tmp_path}/net.py:build", row.grad_mode, row.cpu, 3, "float32", None)
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    names: dict[str, Any] = {}
    exec(script, names)
    if row.cpu.package is not None:
        names["folder"].cleanup()
    assert_compiled_alike(compiler, row.cpu)


@pytest.mark.long
@pytest.mark.compiles
@pytest.mark.parametrize("mode", [name for name, row in MODES.items() if row.cpu.freezes])
def test_torch_freezes_the_weights_where_the_shown_code_says_so(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import freezing

    seen, freeze = list[object](), freezing.freeze
    monkeypatch.setattr(freezing, "freeze", lambda *given: seen.append(given) or freeze(*given))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    row, model, x = MODES[mode], nn.Linear(4, 2).eval(), torch.randn(3, 4)
    names: dict[str, Any] = {"torch": torch, "model": model, "x": x}
    exec(row.cpu.in_pytorch(row.grad_mode), names)
    assert seen
    torch.testing.assert_close(names["output"], model(x), rtol=1e-4, atol=1e-4)
