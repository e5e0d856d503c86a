"""Hand-captured steps, on a fake graph that replays recorded operators in the memory that they had."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from models.transformer import Transformer
from service.modes import MODES, Effect, Mode
from service.step import callables
from service.step import graphs as capture
from service.step.buffers import Arguments, Buffers, allocate, prepare
from service.step.callables import Step, build_step
from service.step.graphs import CaptureError, forbid_recompilation
from service.step.loaded_model import PRECISIONS
from service.step.parity import forced_logits
from tests.support.fake_cuda import FakeGraphs
from tests.support.small_models import CONFIG

CAPTURED = Effect("cuda-graph", graph_replay=True, captured=True)
ROW = Mode("cuda-graph", "inference_mode", "launches", cuda=CAPTURED, cpu=CAPTURED)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(CONFIG, max_batch=2, seed=3).eval()


@pytest.fixture(scope="module")
def buffers(model: Transformer) -> Buffers:
    return allocate(model, [2], prefill_chunk=32)[2]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> FakeGraphs:
    fake = FakeGraphs()
    monkeypatch.setattr(callables, "record_cuda_graph", fake.record)
    return fake


@pytest.fixture
def default_stance() -> Iterator[None]:
    yield
    torch.compiler.set_stance("default")


def decode(step: Step, buffers: Buffers, token: int, position: int) -> Tensor:
    prepare(buffers, position)
    buffers.token.fill_(token)
    return step(*buffers.arguments("decode"))[0]


def test_a_replayed_step_computes_what_inference_mode_does_whatever_the_buffers_hold(
    model: Transformer, buffers: Buffers, graphs: FakeGraphs
) -> None:
    plain, step = (build_step(row, model) for row in (MODES["inference_mode"], ROW))
    expected = forced_logits(plain, plain, buffers, CONFIG.vocabulary)
    assert torch.equal(forced_logits(step, step, buffers, CONFIG.vocabulary), expected)
    assert graphs.recorded == 3  # two chunks, and decode
    assert graphs.replayed == len(expected)


def copied(arguments: Arguments) -> Arguments:
    tokens, positions, last, cache = arguments
    return tokens.clone(), positions.clone(), last.clone(), tuple((k.clone(), v.clone()) for k, v in cache)


def test_other_tensors_of_the_same_shapes_are_never_answered_with_what_the_first_ones_hold(
    model: Transformer, buffers: Buffers, graphs: FakeGraphs
) -> None:
    step = build_step(ROW, model)
    decode(step, buffers, token=5, position=1)
    others = copied(buffers.arguments("decode"))
    others[0].fill_(9)
    expected = build_step(MODES["inference_mode"], model)(*others)[0].clone()
    assert torch.equal(step(*others)[0], expected)
    assert graphs.recorded == 2


def test_arguments_that_their_owner_drops_live_on_so_that_none_can_take_their_identity(
    model: Transformer, buffers: Buffers, graphs: FakeGraphs
) -> None:
    step = build_step(ROW, model)
    prepare(buffers)
    for number in range(1, 4):
        step(*copied(buffers.arguments("decode")))
        assert graphs.recorded == number


@pytest.mark.usefixtures("graphs", "default_stance")
def test_after_warm_up_nothing_is_captured_and_what_was_is_still_replayed(
    model: Transformer, buffers: Buffers
) -> None:
    step = build_step(ROW, model)
    before = decode(step, buffers, token=5, position=1).clone()
    forbid_recompilation()
    assert torch.equal(decode(step, buffers, token=5, position=1), before)
    with pytest.raises(CaptureError, match=r"tokens \(2, 16\) .* call the step with the buffers"):
        step(*buffers.arguments("prefill", 16))


def test_under_autocast_a_replay_casts_the_weights_again(buffers: Buffers, graphs: FakeGraphs) -> None:
    own = Transformer(CONFIG, max_batch=2, seed=5).eval()
    precision = PRECISIONS["autocast-bfloat16"]
    own.rotary = own.rotary.to(precision.cache)
    mixed = allocate(own, [2], prefill_chunk=32, cache_dtype=precision.cache)[2]
    with capture._uncached_casts():
        step = build_step(ROW, own, precision=precision)
        before = decode(step, mixed, token=5, position=1).clone()
        with torch.no_grad():
            own.blocks[0].feed_forward.down.weight.mul_(3.0)
        assert not torch.equal(decode(step, mixed, token=5, position=1), before)


def test_a_step_that_cannot_be_captured_says_why_and_what_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's own: what made a capture invalid is the context of what ending it raises."""
    ending = torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture")
    ending.error_code = 901
    calls: list[int] = []

    def run() -> tuple[Tensor, Tensor]:
        calls.append(1)
        if len(calls) > capture.WARM_UP_CALLS:
            raise RuntimeError("this operator waits for the device")
        return torch.zeros(1), torch.zeros(1)

    cuda, stream = MagicMock(), MagicMock(**{"__exit__.return_value": False})
    cuda.graph.return_value.__exit__.side_effect = ending
    cuda.stream.return_value = cuda.current_stream.return_value = stream
    for name in ("CUDAGraph", "current_stream", "graph", "graph_pool_handle", "set_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    monkeypatch.setattr(capture, "_stream", lambda: stream)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    why = r"this operator waits for the device; what remains: inference_mode"
    with pytest.raises(CaptureError, match=why):
        capture.record_cuda_graph(run)
    cuda.set_stream.assert_called_once_with(stream)  # a capture that cannot be ended does not bring it back
