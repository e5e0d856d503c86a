"""The CUDA path on a real device: graphs, waits, outputs that survive the next replay."""

from __future__ import annotations

import os
from typing import get_args

import pytest
import torch
from torch._dynamo.utils import counters

from models.config import CONFIGS
from models.transformer import Transformer
from service.modes import MODES
from service.records import Phase
from service.step.buffers import Buffers, allocate, prepare
from service.step.callables import build_step
from service.step.meters import CudaMeter, Readings
from tests.gpu import NEEDS_CUDA

pytestmark = NEEDS_CUDA


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(CONFIGS["tiny"], max_batch=4).eval().to("cuda", torch.bfloat16)


@pytest.fixture(scope="module")
def buffers(model: Transformer) -> Buffers:
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", "/dev/shm/launchbound-tests")
    return allocate(model, [4], prefill_chunk=64)[4]


@pytest.mark.parametrize("phase", get_args(Phase))
@pytest.mark.parametrize("mode", ["compiled", "reduce-overhead"])
def test_one_callable_serves_every_shape_of_a_phase(
    model: Transformer, buffers: Buffers, mode: str, phase: Phase
) -> None:
    step = build_step(MODES[mode], model)
    graphs = counters["stats"]["unique_graphs"]
    for arguments in buffers.shapes(phase):
        step(*arguments)
    assert counters["stats"]["unique_graphs"] == graphs + 1


def test_a_copied_result_survives_the_next_replay(model: Transformer, buffers: Buffers) -> None:
    step = build_step(MODES["reduce-overhead"], model)
    with torch.no_grad():
        for _ in range(4):
            prepare(buffers)
            step(*buffers.arguments("decode"))
        buffers.token.fill_(5)
        first = step(*buffers.arguments("decode"))[0].clone()
        kept = first.clone()
        buffers.token.fill_(9)
        second = step(*buffers.arguments("decode"))[0].clone()
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "mode", ["eager", "inference_mode", "reduce-overhead", "cuda-graph", "compiled-captured"]
)
def test_a_step_waits_for_the_device_only_in_fetch(model: Transformer, buffers: Buffers, mode: str) -> None:
    step, meter, readings = build_step(MODES[mode], model), CudaMeter(4), Readings()
    with torch.no_grad():
        for _ in range(4):
            prepare(buffers)
            meter.fetch(meter.copy(meter.run(step, buffers.arguments("decode"), readings)[1]), readings)
        torch.cuda.set_sync_debug_mode("error")
        try:
            _, greedy = meter.run(step, buffers.arguments("decode"), readings)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        tokens = meter.fetch(meter.copy(greedy), readings)
    assert len(tokens) == 4
    assert len(readings.call) == len(readings.span) == len(readings.wait) == 5
    assert all(span > 0 for span in readings.span)
