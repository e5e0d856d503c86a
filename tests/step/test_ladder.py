"""What each mode of the ladder switches off, as observed inside a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from models.config import Config
from models.opening import open_model
from models.served import Cache
from models.transformer import Transformer
from service.modes import LADDER, MODES, named_modes
from service.records import Phase
from service.step.buffers import Buffers, allocate, measured_arguments, prepare, set_positions
from service.step.callables import build_step
from service.step.graphs import forbid_recompilation, is_recompile_error

CONFIG = Config(layers=1, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, vocabulary=64, context=32)


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
    return allocate(model, [1, 2], prefill_chunk=8)[2]


@pytest.mark.parametrize(
    ("mode", "grad", "tape", "inference"),
    [("eager", True, True, False), ("no_grad", False, False, False), ("inference_mode", False, False, True)],
)
def test_each_eager_mode_removes_one_layer(
    model: Transformer, buffers: Buffers, mode: str, grad: bool, tape: bool, inference: bool
) -> None:
    spy = Spy(model)
    prepare(buffers)
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
        prepare(buffers, position)
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
    prepare(buffers)
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
    prepare(buffers)
    step(*buffers.arguments("decode"))
    forbid_recompilation()
    with pytest.raises(RuntimeError) as refused:
        step(torch.zeros((2, 3), dtype=torch.int64), *buffers.arguments("decode")[1:])
    assert is_recompile_error(refused.value)


def test_modes_are_named_one_by_one_or_all_at_once() -> None:
    assert named_modes(["compiled", "eager", "compiled"]) == ["eager", "compiled"]
    assert named_modes(["all"]) == [mode.name for mode in LADDER]
    with pytest.raises(ValueError, match=r"unknown mode fast; try some of eager.* or all"):
        named_modes(["eager", "fast"])


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_indexes_that_a_job_left_between_two_chunks_do_not_reach_a_shorter_one(phase: Phase) -> None:
    model = open_model("tiny", 1, torch.device("cpu"), torch.float32, torch.float32, None, 64)
    own = allocate(model, [1], 64)[1]
    own.last.fill_(own.chunk_length - 1)
    set_positions(own, phase)
    tokens, _, last, _ = measured_arguments(own, phase)
    assert int(last.max()) < tokens.shape[1]
