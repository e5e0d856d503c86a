"""What an engine says of itself and its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.engine.parts import build_parts
from tests.engine.serving import settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("restored_globals")]


def test_what_is_measured_of_the_machine_is_there_once_the_engine_is_warm(tmp_path: Path) -> None:
    parts = build_parts(settings(tmp_path, linears="aten"), lambda status: None)
    cold, warm = parts.status(warm=False), parts.status(warm=True)
    assert (cold.memory_bandwidth, cold.null_kernel_seconds) == (None, None)
    assert warm.memory_bandwidth is not None
    assert warm.step_bytes is not None
    assert cold.step_bytes == warm.step_bytes
    # Float32, the head's table tied to the embedding's and so counted once; norms are left out.
    assert 0.99 < warm.step_bytes.weights / (4 * warm.parameters) < 1
    assert warm.memory_bandwidth.buffer_bytes == warm.step_bytes.weights
