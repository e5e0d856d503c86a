"""What each mode of the ladder switches off, as observed inside a step; steps captured by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from models.opening import resolve
from models.served import Cache
from models.transformer import Transformer
from service.modes import LADDER, MODES, Effect, Mode, asked_modes, named_modes
from service.records import Phase
from service.step import callables
from service.step import graphs as capture
from service.step.buffers import Arguments, Buffers, allocate, measured_arguments, set_positions
from service.step.callables import Step, build_step
from service.step.graphs import CaptureError, forbid_recompilation, is_recompile_error
from service.step.loaded_model import PRECISIONS
from service.step.parity import forced_logits
from tests.support.fake_cuda import FakeGraphs
from tests.support.small_models import CONFIG


class Spy(nn.Module):
    """The model, recording what was switched on while it ran."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.inner = model
        self.config = model.config
        self.seen: dict[str, Any] = {}

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        logits, greedy = self.inner(tokens, positions, last, cache)
        self.seen = {
            "grad": torch.is_grad_enabled(),
            "tape": logits.grad_fn is not None,
            "inference": logits.is_inference(),
            "cache_requires_grad": any(k.requires_grad or v.requires_grad for k, v in cache),
        }
        return logits, greedy


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(CONFIG, max_batch=2, seed=3).eval()


@pytest.fixture(scope="module")
def buffers(model: Transformer) -> Buffers:
    return allocate(model, [1, 2], prefill_chunk=32)[2]


@pytest.mark.parametrize(
    ("mode", "grad", "tape", "inference"),
    [("eager", True, True, False), ("no_grad", False, False, False), ("inference_mode", False, False, True)],
)
def test_each_eager_mode_removes_one_layer(
    model: Transformer, buffers: Buffers, mode: str, grad: bool, tape: bool, inference: bool
) -> None:
    spy = Spy(model)
    buffers.prepare()
    build_step(MODES[mode], spy)(*buffers.arguments("decode"))
    assert spy.seen == {"grad": grad, "tape": tape, "inference": inference, "cache_requires_grad": False}


@pytest.mark.compiles
@pytest.mark.parametrize("mode", ["compiled", "reduce-overhead"])
def test_a_compiled_mode_is_one_graph_without_breaks_and_never_recompiles(
    model: Transformer, buffers: Buffers, mode: str
) -> None:
    graphs = counters["stats"]["unique_graphs"]
    breaks = sum(counters["graph_break"].values())
    step = build_step(MODES[mode], model)
    for position in range(4):
        buffers.prepare(position)
        step(*buffers.arguments("decode"))
    assert counters["stats"]["unique_graphs"] - graphs == 1
    assert sum(counters["graph_break"].values()) == breaks


@pytest.mark.compiles
@pytest.mark.parametrize(("mode", "frozen"), [("compiled", False), ("max-autotune", True)])
def test_only_a_mode_that_freezes_keeps_the_weights_it_was_compiled_with(
    buffers: Buffers, mode: str, frozen: bool
) -> None:
    own = Transformer(CONFIG, max_batch=2, seed=5).eval()
    step = build_step(MODES[mode], own)
    buffers.prepare()
    before, greedy = (made.clone() for made in step(*buffers.arguments("decode")))
    assert torch.equal(greedy, build_step(MODES["eager"], own)(*buffers.arguments("decode"))[1])
    with torch.no_grad():
        own.blocks[0].feed_forward.down.weight.mul_(3.0)
    after = step(*buffers.arguments("decode"))[0]
    assert torch.equal(before, after) is frozen


@pytest.fixture
def default_stance() -> Iterator[None]:
    yield
    torch.compiler.set_stance("default")


@pytest.mark.compiles
@pytest.mark.usefixtures("default_stance")
def test_a_shape_outside_the_buckets_is_refused_after_warm_up(model: Transformer, buffers: Buffers) -> None:
    step = build_step(MODES["compiled"], model)
    buffers.prepare()
    step(*buffers.arguments("decode"))
    forbid_recompilation()
    with pytest.raises(RuntimeError) as refused:
        step(torch.zeros((2, 3), dtype=torch.int64), *buffers.arguments("decode")[1:])
    assert is_recompile_error(refused.value)


def test_modes_are_named_one_by_one_or_all_at_once() -> None:
    assert named_modes(["compiled", "eager", "compiled"]) == ["eager", "compiled"]
    assert asked_modes(["compiled", "eager", "compiled"]) == ["compiled", "eager"]
    assert asked_modes(["compiled", "all"])[:3] == ["compiled", "eager", "no_grad"]
    assert named_modes(["all"]) == [mode.name for mode in LADDER]
    with pytest.raises(ValueError, match=r"unknown mode fast; try some of eager.* or all"):
        named_modes(["eager", "fast"])


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_indexes_that_a_job_left_between_two_chunks_do_not_reach_a_shorter_one(phase: Phase) -> None:
    model = resolve("tiny").model(1, torch.device("cpu"), torch.float32, torch.float32, None, 64)
    own = allocate(model, [1], 64)[1]
    own.last.fill_(own.chunk_length - 1)
    set_positions(own, phase)
    tokens, _, last, _ = measured_arguments(own, phase)
    assert int(last.max()) < tokens.shape[1]


# Hand-captured steps, on a fake graph that replays recorded operators in the memory that they had

CAPTURED = Effect("cuda-graph", graph_replay=True, captured=True)
ROW = Mode("cuda-graph", "inference_mode", "launches", cuda=CAPTURED, cpu=CAPTURED)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> FakeGraphs:
    fake = FakeGraphs()
    monkeypatch.setattr(callables, "record_cuda_graph", fake.record)
    return fake


def decode(step: Step, buffers: Buffers, token: int, position: int) -> Tensor:
    buffers.prepare(position)
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
    buffers.prepare()
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
    with pytest.raises(CaptureError, match=r"tensors of \(2, 16\), .* call the step with the buffers"):
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
