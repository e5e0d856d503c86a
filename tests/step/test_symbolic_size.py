"""Sizes that change: whether one callable may be guarded by what it needs of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from service.step.buffers import make_symbolic

REACHES = [512, 256, 128, 64]


def aligned(cache: Tensor) -> Tensor:
    """As attention on CUDA asks of its mask."""
    return cache.sum(1) if cache.shape[1] % 8 == 0 else cache.sum(1) + 1


def parts(enforced: bool) -> list[Tensor]:
    cache = torch.ones(2, max(REACHES) + 1, 3)
    found = [cache[:, :reach] for reach in REACHES]
    for part in found:
        make_symbolic(part, REACHES, enforced)
    return found


@pytest.mark.compiles
def test_a_size_that_is_not_enforced_may_be_guarded_by_its_alignment_in_one_callable() -> None:
    graphs = []

    def backend(graph: fx.GraphModule, _: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    step = torch.compile(aligned, backend=backend, fullgraph=True)
    for part in parts(enforced=False):
        assert torch.equal(step(part), part.sum(1))
    assert len(graphs) == 1


@pytest.mark.compiles
def test_an_enforced_size_refuses_such_a_guard() -> None:
    torch._dynamo.reset()
    step = torch.compile(aligned, backend="eager", fullgraph=True)
    with pytest.raises(ConstraintViolationError, match=r"% 8"):
        step(parts(enforced=True)[0])
