"""The custom operator is what ATen computes, its fake is true, it compiles; and so does its Triton kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
from hypothesis import given
from hypothesis import strategies as st
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from service.anatomy import rms_norm
from service.anatomy.common import StudyError
from service.anatomy.rms_norm import aten_rms_norm, rms_norm_operator
from service.anatomy.rms_norm_triton import _rms_norm
from service.measure.cases import Bench
from tests.support.small_models import CONFIG, quiet

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def finding(bench: Bench) -> rms_norm.RmsNormFinding:
    """Two small compilations."""
    return rms_norm.compare_rms_norm(bench, rms_norm.RmsNormArguments(rows=4, rounds=6), quiet)


@given(st.integers(0, 5), st.integers(1, 9), st.booleans(), st.sampled_from([torch.float32, torch.bfloat16]))
def test_the_operator_is_what_aten_computes(
    rows: int, width: int, transposed: bool, dtype: torch.dtype
) -> None:
    x = torch.randn(width, rows).t() if transposed else torch.randn(rows, width)
    x = x.to(dtype)
    weight = torch.randn(width).to(dtype)
    found = rms_norm_operator()(x, weight, rms_norm.EPSILON)
    torch.testing.assert_close(found, aten_rms_norm(x, weight, rms_norm.EPSILON))
    assert found.is_contiguous()


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (8,)])
def test_the_operator_passes_every_check_of_torch(shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), torch.randn(8)
    checks = torch.library.opcheck(rms_norm_operator(), (x, weight, rms_norm.EPSILON))
    assert set(checks.values()) == {"SUCCESS"}


def test_both_forms_compile_without_a_break_and_fit_the_eager_one(finding: rms_norm.RmsNormFinding) -> None:
    names = ["ATen, eager", "custom, eager", "ATen, compiled", "custom, compiled"]
    assert [form.name for form in finding.forms] == names
    assert finding.width == CONFIG.width
    for form in finding.forms:
        assert (form.kernels is not None) == form.name.endswith("compiled")
        assert form.kernels is None or form.kernels > 0


@pytest.mark.parametrize("factor", [1.0, torch.nan])
def test_a_form_that_computes_something_else_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    monkeypatch.setattr(rms_norm, "rms_norm_operator", lambda: lambda x, weight, epsilon: x * weight * factor)
    monkeypatch.setattr(rms_norm, "_compiled", lambda norm, inputs: (rms_norm.surrounded(norm), 1))
    with pytest.raises(StudyError, match="differs from ATen's"):
        rms_norm.compare_rms_norm(bench, rms_norm.RmsNormArguments(rows=4, rounds=6), quiet)


def test_a_form_that_breaks_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        torch._dynamo.graph_break()
        return aten_rms_norm(x, weight, epsilon)

    monkeypatch.setattr(rms_norm, "rms_norm_operator", lambda: breaking)
    monkeypatch.setattr(rms_norm, "aten_rms_norm", breaking)
    with pytest.raises(StudyError, match="does not compile whole"):
        rms_norm.compare_rms_norm(bench, rms_norm.RmsNormArguments(rows=4, rounds=6), quiet)


# The Triton kernel without a GPU: run by Triton's interpreter, and compiled for an H100


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
