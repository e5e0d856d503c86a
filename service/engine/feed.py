"""Feeds a decode step: its tokens and positions, written into the static buffers between two steps."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from service.step.buffers import Buffers


class Feed(Protocol):
    """Writes into the buffers of one bucket."""

    def put(self, tokens: Tensor, values: list[int]) -> None:
        """Set the next step's tokens: `tokens`, int64 [bucket], whose values on the host are `values`."""

    def advance(self) -> None:
        """Move every row on by one position."""


class DeviceFeed:
    """By operators on the device."""

    def __init__(self, buffers: Buffers) -> None:
        self._token_row = buffers.token_row
        self._positions = buffers.positions
        self._one = buffers.one

    def put(self, tokens: Tensor, values: list[int]) -> None:
        """On the device, without a wait."""
        self._token_row.copy_(tokens)

    def advance(self) -> None:
        """One operator."""
        self._positions.add_(self._one)


class HostFeed:
    """Through NumPy's view of the same memory: after a step, whose weights have passed through the caches, an
    operator costs ten microseconds and more, because the dispatcher's code has to be fetched again.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._tokens = buffers.token_row.numpy()
        self._positions = buffers.positions.numpy()

    def put(self, tokens: Tensor, values: list[int]) -> None:
        """The tokens are on the host already."""
        self._tokens[:] = values

    def advance(self) -> None:
        """In place."""
        self._positions += 1


def new_feed(buffers: Buffers) -> Feed:
    """The feed that fits the device of `buffers`."""
    return DeviceFeed(buffers) if buffers.token.is_cuda else HostFeed(buffers)
