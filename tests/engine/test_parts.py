"""What an engine says of itself and its machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from service.engine.parts import blas_libraries, build_parts
from tests.engine.serving import settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("restored_globals")]


def test_what_is_measured_of_the_machine_is_there_once_the_engine_is_warm(tmp_path: Path) -> None:
    parts = build_parts(settings(tmp_path), lambda status: None)
    cold, warm = parts.status(), parts.status(parts.measure())
    assert (cold.memory_bandwidth, cold.null_kernel_seconds) == (None, None)
    assert warm.memory_bandwidth is not None
    assert warm.step_bytes is not None
    assert cold.step_bytes == warm.step_bytes
    # Float32, the head's table tied to the embedding's and so counted once; norms are left out.
    assert 0.99 < warm.step_bytes.weights / (4 * warm.parameters) < 1
    assert warm.memory_bandwidth.buffer_bytes == warm.step_bytes.weights
    assert cold.matrix_rate is None
    assert warm.matrix_rate is not None
    assert warm.step_flops is not None
    assert warm.step_flops.per_row == 2 * warm.step_bytes.weights / 4
    assert warm.blas is not None
    assert f"ATen {torch.backends.cpu.get_cpu_capability()}" in warm.blas


def test_the_libraries_that_multiply_are_named_from_what_torch_says_of_itself() -> None:
    lines = (
        "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605",
        "  - Intel(R) MKL-DNN v3.7.1 (Git Hash 80af)",
        "  - CPU capability usage: AVX2",
        "  - Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release",
    )
    assert blas_libraries("\n".join(lines)) == "MKL 2024.2, oneDNN 3.7.1, ATen AVX2"
    arm = "  - CPU capability usage: SVE256\n  - Build settings: BLAS_INFO=open"
    assert blas_libraries(arm) == "BLAS open, ATen SVE256"


def test_a_context_without_room_behind_a_chunk_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """As a model with a window of one chunk has it."""
    short = settings(tmp_path, context=64, prefill_chunk=64)
    with pytest.raises(ValueError, match="set LAUNCHBOUND_PREFILL_CHUNK to 32"):
        build_parts(short, lambda status: None)
    build_parts(settings(tmp_path, context=64, prefill_chunk=32), lambda status: None)
