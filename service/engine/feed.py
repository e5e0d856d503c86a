"""Feeds a decode step: its tokens and positions, written into the static buffers between two steps."""

from __future__ import annotations

from ctypes import c_int64
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
    """Word by word in the same memory.

    After a step, whose weights have passed through the caches, an operator of torch costs more than the whole
    loop, and one of NumPy twice that: their dispatchers' code has to be fetched again.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers  # keeps the memory alive
        self._tokens = _words(buffers.token_row)
        self._positions = _words(buffers.positions)

    def put(self, tokens: Tensor, values: list[int]) -> None:
        """The tokens are on the host already."""
        row = self._tokens
        for index, value in enumerate(values):
            row[index] = value

    def advance(self) -> None:
        """In place."""
        positions = self._positions
        for index in range(len(positions)):
            positions[index] += 1


def _words(tensor: Tensor) -> memoryview:
    """The elements of `tensor`, int64 of one dimension on the host, as integers in its own memory."""
    address, size = tensor.data_ptr(), tensor.numel()
    return memoryview((c_int64 * size).from_address(address)).cast("B").cast("q")


def new_feed(buffers: Buffers) -> Feed:
    """The feed that fits the device of `buffers`."""
    return DeviceFeed(buffers) if buffers.token.is_cuda else HostFeed(buffers)
