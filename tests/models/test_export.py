"""The exported program runs a user's module without launchbound and prints its time beside the reported."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models.export import script_of
from models.naming import ModuleError
from service.modes import MODES

CODE = """
from dataclasses import dataclass

import torch
from torch import nn

from models.sizes import WIDTH

@dataclass
class Output:
    y: torch.Tensor

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)
        self.layer.register_buffer("steps", torch.tensor(3))

    def forward(self, x, *, scale):
        with open("seen", "a") as file:
            modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            file.write(f"{modes} {x.dtype} {x.shape[0]}\\n")
        return self.layer(x) * scale

def build():
    return Net().eval(), lambda batch, seed: {"x": torch.randn(batch, WIDTH), "scale": 2.0}
"""
QUIET = re.sub(r"        with open.*?\n.*?\n.*?\n", "", CODE)


def run_script(
    folder: Path,
    mode: str,
    code: str,
    dtype: str = "float32",
    seconds: float | None = 0.5,
    size: str | None = None,
) -> str:
    """What the program for `mode` prints, run beside a package of the user's that is called `models`."""
    (folder / "models").mkdir()
    (folder / "models" / "__init__.py").touch()
    (folder / "models" / "sizes.py").write_text("WIDTH = 4")
    (folder / "net.py").write_text(code)
    row = MODES[mode]
    name = f"{folder}/net.py:build"
    script = script_of(name, row.grad_mode, row.cpu, 8, dtype, seconds, threads=1, size=size)
    assert ast.get_docstring(ast.parse(script)).startswith(name)
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "script.py").write_text(script)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "elsewhere/script.py"],
        cwd=folder,
        env={**environment, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "dtype", "seen"),
    [
        ("eager", "bfloat16", "(True, False) torch.bfloat16 8"),
        ("inference_mode", "float32", "(False, True) torch.float32 8"),
    ],
)
def test_a_plain_mode_runs_as_it_is_named(tmp_path: Path, mode: str, dtype: str, seen: str) -> None:
    said = run_script(tmp_path, mode, CODE, dtype)
    assert re.fullmatch(
        r"[\d.e-]+ ms per call of batch 8 \([\d.e-]+ to [\d.e-]+ ms\)\n500 ms was reported by launchbound\n",
        said,
    )
    assert set((tmp_path / "seen").read_text().splitlines()) == {seen}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["compiled", "aot-inductor"])
def test_a_compiled_mode_compiles(tmp_path: Path, mode: str) -> None:
    assert "ms per call of batch 8" in run_script(tmp_path, mode, QUIET, seconds=None)
    assert list((tmp_path / "cache").rglob("*.so"))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["3", "5x"])
def test_a_program_of_a_module_with_sizes_is_of_the_size_that_was_measured(tmp_path: Path, size: str) -> None:
    code = """from types import SimpleNamespace
import torch

def inputs(batch, seed, size):
    assert size in (3, "5x")
    return torch.randn(batch, 3 if size == 3 else 5)

class Net(torch.nn.Module):
    def forward(self, x):
        open("seen", "w").write(str(tuple(x.shape)))
        return x

def build():
    return SimpleNamespace(model=Net().eval(), inputs=inputs, sizes=(3, "5x"))
"""
    said = run_script(tmp_path, "inference_mode", code, size=size)
    assert f" ms per call of batch 8, size {size} (" in said
    assert (tmp_path / "seen").read_text() == f"(8, {size[0]})"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", MODES)
def test_the_program_has_the_lines_of_its_mode(tmp_path: Path, mode: str, device: str) -> None:
    (tmp_path / "net.py").write_text("")
    row = MODES[mode]
    effect = row.effect(device)
    script = script_of(
        f"{tmp_path}/net.py:build", row.grad_mode, effect, 2, "autocast-bfloat16", 1.0, device=device
    )
    ast.parse(script)
    assert ("torch.compile(lambda " in script) == (effect.compile is not None)
    assert ("aoti_compile_and_package(" in script) == (effect.package is not None)
    assert ("config.patch(freezing=True)" in script) == (effect.freezes and effect.package is None)
    assert ("graph.replay" in script) == effect.captured
    assert ("cudagraph_mark_step_begin" in script) == (effect.graph_replay and not effect.captured)
    assert ("torch.inference_mode()" in script) == (row.grad_mode == "inference_mode")
    assert f"torch.autocast({device!r}, torch.bfloat16)" in script
    assert "launchbound" not in re.sub(r"(?s)^.*?import importlib\n|print\(.*?\n", "", script)


def test_a_name_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModuleError, match="no file"):
        script_of(f"{tmp_path}/net.py:build", "enabled", MODES["eager"].cpu, 1, "float32", None)
