"""The decoder: ragged batches, the detached cache, shapes that cannot be built."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch._ops import OpOverload
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode

from models import checkpoint
from models.config import Config, ConfigError
from models.transformer import Transformer, new_cache
from tests.support.small_models import SMALL, greedy

Kwargs = dict[str, object] | None
GradMode = Callable[[], AbstractContextManager[object]]
CPU = torch.device("cpu")
SHORT = [7, 2, 9]
LONG = [(31 * place + 5) % 4096 for place in range(150)]


@pytest.fixture(scope="module")
def tiny() -> Transformer:
    return checkpoint.build("tiny", 4)


@pytest.mark.parametrize("prompt", [SHORT, LONG, LONG[:64], LONG[:65]], ids=["3", "150", "64", "65"])
def test_a_prompt_alone_equals_the_same_prompt_inside_a_ragged_batch(
    tiny: Transformer, prompt: list[int]
) -> None:
    tokens, logits = greedy(tiny, [prompt], new=12)
    together, logits_together = greedy(tiny, [LONG[:100], prompt, [5]], new=12)
    assert together[1].tolist() == tokens[0].tolist()
    torch.testing.assert_close(logits_together[1], logits[0], atol=1e-4, rtol=1e-4)


def test_the_prefill_chunk_length_does_not_change_the_logits(tiny: Transformer) -> None:
    _, small = greedy(tiny, [LONG, SHORT], new=4, chunk=16)
    _, large = greedy(tiny, [LONG, SHORT], new=4, chunk=256)
    torch.testing.assert_close(small, large, atol=1e-4, rtol=1e-4)


def test_a_sequence_may_fill_the_context_to_its_last_position(tiny: Transformer) -> None:
    prompt = [11] * (tiny.config.context - 1)
    _, logits = greedy(tiny, [prompt], new=2)
    assert logits.isfinite().all()


def test_the_greedy_token_is_the_largest_logit(tiny: Transformer) -> None:
    cache = new_cache(tiny.config, 2, CPU, torch.float32)
    zeros = torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():
        logits, token = tiny(torch.tensor([[3], [4]]), zeros, zeros, cache)
    assert logits.shape == (2, 4096)
    assert token.tolist() == logits.argmax(dim=1).tolist()


def tape_size(tensor: torch.Tensor) -> int:
    """How many backward nodes can be reached from `tensor`."""
    seen: set[Node] = set()
    ahead = [tensor.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [following for following, _ in node.next_functions]
    return len(seen)


def test_the_tape_of_a_step_does_not_reach_the_step_before(tiny: Transformer) -> None:
    cache = new_cache(tiny.config, 1, CPU, torch.float32)
    last = torch.zeros(1, dtype=torch.int64)
    sizes = []
    with torch.enable_grad():
        for position in range(3):
            logits, _ = tiny(torch.tensor([[5]]), torch.tensor([position]), last, cache)
            sizes.append(tape_size(logits))
    assert sizes[0] > len(list(tiny.parameters()))
    assert sizes[0] == sizes[1] == sizes[2]
    assert not any(part.requires_grad for layer in cache for part in layer)


class Operators(TorchDispatchMode):
    """Notes the name of every operator that is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: Kwargs = None
    ) -> object:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def operators(config: Config, batch: int, grad: AbstractContextManager[object]) -> list[str]:
    """Names of the operators of one decode step, in order."""
    model = Transformer(config, batch).eval()
    cache = new_cache(config, batch, CPU, torch.float32)
    tokens = torch.ones(batch, 1, dtype=torch.int64)
    places = torch.full((batch,), 20)
    with grad, Operators() as noted:
        model(tokens, places, torch.zeros(batch, dtype=torch.int64), cache)
    return noted.names


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    config = SMALL
    first, same, other = (Transformer(config, 1, seed).embedding.weight for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("field", "changes"), [("kv_heads", {"heads": 6, "kv_heads": 4}), ("head_width", {"head_width": 33})]
)
def test_a_shape_that_cannot_be_built_names_the_field(field: str, changes: dict[str, int]) -> None:
    sizes = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "head_width": 8, "hidden": 32}
    with pytest.raises(ConfigError, match=field):
        Config(**{**sizes, **changes}, vocabulary=64)
