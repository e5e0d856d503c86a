"""What an engine says of itself and its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.engine.parts import build_parts
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


def test_a_context_without_room_behind_a_chunk_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """As a model with a window of one chunk has it."""
    short = settings(tmp_path, context=64, prefill_chunk=64)
    with pytest.raises(ValueError, match="set LAUNCHBOUND_PREFILL_CHUNK to 32"):
        build_parts(short, lambda status: None)
    build_parts(settings(tmp_path, context=64, prefill_chunk=32), lambda status: None)
