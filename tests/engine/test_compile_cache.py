"""Compiled code is found again from another folder of the same code, and never for different code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.compiles, pytest.mark.slow]

HOUSE = Path(__file__).parents[2]

COMPILE_A_STEP = """
import json, sys
from service.step.process_state import prepare_process
prepare_process(sys.argv[1])
import torch
from torch._dynamo.utils import counters
from models.config import Config
from models.transformer import Transformer
from service.modes import MODES
from service.step.buffers import allocate
from service.step.callables import build_step
import models.transformer
config = Config(layers=1, width=32, heads=2, kv_heads=1, head_width=16, hidden=64, vocabulary=64)
model = Transformer(config, 1).eval()
buffers = allocate(model, [1], 32)[1]
with torch.no_grad():
    build_step(MODES["compiled"], model)(*buffers.arguments("decode"))
found = {
    "from": models.transformer.__file__,
    "autograd": counters["aot_autograd"]["autograd_cache_hit"],
    "inductor": counters["inductor"]["fxgraph_cache_hit"],
    "missed": counters["aot_autograd"]["autograd_cache_miss"] + counters["inductor"]["fxgraph_cache_miss"],
}
print(json.dumps(found))
"""


def copy_of_the_code(folder: Path) -> Path:
    for package in ("models", "service"):
        shutil.copytree(HOUSE / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def compile_a_step(code: Path, cache: Path, **environment: str) -> dict[str, int]:
    """Compile a decode step in a new process; what it found in `cache`, by torch's own counters."""
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE_A_STEP, str(cache)],
        env={**inherited, "PYTHONPATH": str(code), **environment},
        cwd=code,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    assert str(found.pop("from")).startswith(str(code))
    return found


def test_the_same_code_in_another_folder_and_environment_is_found_and_changed_code_is_not(
    tmp_path: Path,
) -> None:
    cache = tmp_path / "cache"
    first = copy_of_the_code(tmp_path / "first")
    assert compile_a_step(first, cache) == {"autograd": 0, "inductor": 0, "missed": 2}
    second = copy_of_the_code(tmp_path / "second")
    assert compile_a_step(second, cache, CI="true") == {"autograd": 1, "inductor": 1, "missed": 0}
    file = second / "models" / "transformer.py"
    source = file.read_text()
    changed = source.replace("F.silu(gate) * up", "F.gelu(gate) * up")
    assert changed != source
    file.write_text(changed)
    assert compile_a_step(second, cache, CI="true") == {"autograd": 0, "inductor": 0, "missed": 2}
