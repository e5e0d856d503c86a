"""The Triton kernel without a GPU: run by Triton's interpreter, and compiled for an H100."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from service.anatomy.rms_norm_triton import _rms_norm

IN_THE_INTERPRETER = """
import torch
from service.anatomy.rms_norm import aten_rms_norm
from service.anatomy.rms_norm_triton import launch

for *rows, width in [(3, 64), (2, 5, 192), (4, 100), (7,), (0, 64)]:
    for dtype in [torch.float32, torch.bfloat16, torch.float16]:
        x, weight = torch.randn(*rows, 2 * width, dtype=dtype)[..., ::2], torch.randn(width, dtype=dtype)
        found = launch(x, weight, 0.1)
        torch.testing.assert_close(found, aten_rms_norm(x, weight, 0.1))
        assert found.is_contiguous()
print("all compared")
"""


def test_the_kernel_computes_what_aten_does() -> None:
    run = subprocess.run(
        [sys.executable, "-c", IN_THE_INTERPRETER],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "all compared\n", run.stderr


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_the_kernel_compiles_for_an_h100(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tensors = dict.fromkeys(("x", "weight", "out"), f"*{dtype}")
    signature = {**tensors, "width": "i32", "epsilon": "fp32", "BLOCK": "constexpr"}
    source = ASTSource(_rms_norm, signature, {"BLOCK": 256})
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
