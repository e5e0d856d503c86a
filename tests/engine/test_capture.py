"""In which shapes a mode's steps are called before it serves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from torch import nn

from models.checkpoint import build
from service.engine.compiler import ColdStarts
from service.engine.warmup import PHASES, Capture, ConfiguredMode
from service.modes import MODES, Mode
from service.records import ModeStatus
from service.step.buffers import CALLS_TO_CAPTURE, Arguments, Buffers, allocate
from service.step.callables import Step

Shape = tuple[int, int]
"""Tokens per row, and positions of the cache."""


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build("tiny", max_batch=1)


@pytest.fixture(scope="module")
def buffers(model: nn.Module) -> Buffers:
    return allocate(model, [1], prefill_chunk=64)[1]  # type: ignore[arg-type]


def shape(arguments: Arguments) -> Shape:
    return arguments[0].shape[1], arguments[3][0][0].shape[1]


def called(model: nn.Module, buffers: Buffers, name: str, device: str, folder: Path) -> Counter[Shape]:
    """How often the steps of a mode are called in each shape while it is captured for `device`."""
    calls: Counter[Shape] = Counter()

    def make(mode: Mode, of: nn.Module) -> Step:
        return lambda *arguments: calls.update([shape(arguments)])  # type: ignore[return-value]

    made = Capture(model, {1: buffers}, make, ColdStarts(folder, "key"))  # type: ignore[arg-type]
    made._device_type = device
    status = ModeStatus(mode=name, removes="", state="warming", effective=name)
    for _ in made.serving(ConfiguredMode(MODES[name], status)):
        continue
    return calls


@pytest.mark.parametrize(
    ("mode", "times"),
    [
        ("eager", 1),
        ("no_grad", 1),
        ("inference_mode", 1),
        ("compiled", 1),
        ("reduce-overhead", CALLS_TO_CAPTURE - 1),
    ],
)
def test_on_cuda_every_mode_is_called_in_every_shape(
    model: nn.Module, buffers: Buffers, mode: str, times: int, tmp_path: Path
) -> None:
    shapes = {shape(arguments) for phase in PHASES for arguments in buffers.shapes(phase)}
    calls = called(model, buffers, mode, "cuda", tmp_path)
    assert calls.keys() == shapes
    assert min(calls.values()) == times


def test_on_a_cpu_the_largest_shape_and_the_smallest_are_enough(
    model: nn.Module, buffers: Buffers, tmp_path: Path
) -> None:
    ends = [[shape(one) for one in buffers.shapes(phase)] for phase in PHASES]
    expected = {end for shapes in ends for end in (shapes[0], shapes[-1])}
    assert called(model, buffers, "eager", "cpu", tmp_path).keys() == expected
