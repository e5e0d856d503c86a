"""Both feeds write the same tokens and positions into the buffers of a step."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest
import torch

from models.checkpoint import build
from service.engine import generation as feed_module
from service.engine.generation import DeviceFeed, HostFeed, new_feed
from service.step.buffers import Buffers, allocate
from service.step.meters import Readings


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
    readings = Readings()
    feed.put(tokens, tokens.tolist(), readings)
    feed.advance(readings)
    feed.advance(readings)
    assert buffers.token.tolist() == [[5], [0], [4095], [2**33]]
    assert buffers.positions.tolist() == [2, 9, 2**40 + 2, 5]
    assert buffers.token.data_ptr() == address


@pytest.mark.parametrize("kind", [DeviceFeed, HostFeed])
def test_a_chunk_is_written_with_its_position_and_each_rows_last_token(
    buffers: Buffers, kind: type[DeviceFeed] | type[HostFeed]
) -> None:
    chunk, last = torch.arange(64).view(4, 16), torch.tensor([3, 0, 15, 7])
    kind(buffers).put_chunk(chunk, 32, last, Readings())
    assert torch.equal(buffers.chunks[16], chunk)
    assert buffers.positions.tolist() == [32] * 4
    assert torch.equal(buffers.last, last)


def test_what_feeds_a_step_on_a_device_is_on_the_clock_one_entry_per_step(
    buffers: Buffers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each operator lies between two readings of the clock, which are 10 ns apart.
    monkeypatch.setattr(feed_module, "perf_counter_ns", partial(next, count(0, 10)))
    feed, readings, tokens = DeviceFeed(buffers), Readings(), torch.zeros(4, dtype=torch.int64)
    feed.put_chunk(torch.zeros(4, 16, dtype=torch.int64), 0, tokens, readings)
    for _ in range(2):
        feed.put(tokens, [0] * 4, readings)
        feed.advance(readings)
    assert readings.feed == [10, 20, 20]


def test_what_feeds_a_step_on_a_cpu_reads_no_clock(buffers: Buffers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "perf_counter_ns", lambda: pytest.fail("the clock was read"))
    feed, readings, tokens = HostFeed(buffers), Readings(), torch.zeros(4, dtype=torch.int64)
    feed.put_chunk(torch.zeros(4, 16, dtype=torch.int64), 0, tokens, readings)
    feed.put(tokens, [0] * 4, readings)
    feed.advance(readings)
    assert readings == Readings()


def test_on_a_cpu_nothing_goes_through_the_dispatcher(buffers: Buffers) -> None:
    assert isinstance(new_feed(buffers), HostFeed)


@pytest.mark.parametrize("kind", [DeviceFeed, HostFeed])
def test_rows_are_written_from_the_host_in_place(
    buffers: Buffers, kind: type[DeviceFeed] | type[HostFeed]
) -> None:
    address = buffers.positions.data_ptr()
    kind(buffers).put_rows([5, 0, 4095, 2**33], [1, 0, 2**40, 9], Readings())
    assert buffers.token.tolist() == [[5], [0], [4095], [2**33]]
    assert buffers.positions.tolist() == [1, 0, 2**40, 9]
    assert buffers.positions.data_ptr() == address
