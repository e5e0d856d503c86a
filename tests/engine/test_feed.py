"""Both feeds write the same tokens and positions into the buffers of a step."""

from __future__ import annotations

import pytest
import torch

from models.checkpoint import build
from service.engine.feed import DeviceFeed, HostFeed, new_feed
from service.step.buffers import Buffers, allocate


@pytest.fixture(scope="module")
def buffers() -> Buffers:
    return allocate(build("tiny", max_batch=4), [4], prefill_chunk=16)[4]


@pytest.mark.parametrize("kind", [DeviceFeed, HostFeed])
def test_tokens_and_positions_of_every_row_are_written_in_place(
    buffers: Buffers, kind: type[DeviceFeed] | type[HostFeed]
) -> None:
    feed = kind(buffers)
    address = buffers.token.data_ptr()
    buffers.positions.copy_(torch.tensor([0, 7, 2**40, 3]))
    tokens = torch.tensor([5, 0, 4095, 2**33])
    feed.put(tokens, tokens.tolist())
    feed.advance()
    feed.advance()
    assert buffers.token.tolist() == [[5], [0], [4095], [2**33]]
    assert buffers.positions.tolist() == [2, 9, 2**40 + 2, 5]
    assert buffers.token.data_ptr() == address


def test_on_a_cpu_nothing_goes_through_the_dispatcher(buffers: Buffers) -> None:
    assert isinstance(new_feed(buffers), HostFeed)
