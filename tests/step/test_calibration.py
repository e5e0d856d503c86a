"""Which modes have a hollow twin, by device."""

from __future__ import annotations

import pytest

from models.config import Config
from models.transformer import Transformer
from service.protocol.modes import LADDER
from service.step.calibration import Calibration

CONFIG = Config(layers=1, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, vocabulary=64, context=32)


@pytest.fixture
def calibration() -> Calibration:
    return Calibration(Transformer(CONFIG, max_batch=1).eval(), None)


def test_on_a_cpu_every_mode_needs_its_twin(calibration: Calibration) -> None:
    assert all(calibration.needs_twin(mode) for mode in LADDER)


def test_on_cuda_only_modes_that_are_not_compiled_have_one(
    calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_device_type", "cuda")
    needed = [mode.name for mode in LADDER if calibration.needs_twin(mode)]
    assert needed == ["eager", "no_grad", "inference_mode", "cuda-graph"]
