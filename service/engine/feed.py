"""Feeds a step: its tokens and positions, written into the static buffers between two steps."""

from __future__ import annotations

from ctypes import c_int64
from time import perf_counter_ns
from typing import Protocol

import torch
from torch import Tensor

from service.step.buffers import Buffers
from service.step.meters import Readings


class Feed(Protocol):
    """Writes into the buffers of one bucket; what that takes on CUDA goes to `readings.feed`."""

    def put_chunk(self, chunk: Tensor, begin: int, last: Tensor, readings: Readings) -> None:
        """Set a prefill step's inputs.

        `chunk`, int64 [bucket, length] on the host, has its tokens, `last`, int64 [bucket] there too, the
        place of each row's last one in it; `begin` is the position of its first token.
        """

    def put(self, tokens: Tensor, values: list[int], readings: Readings) -> None:
        """Set a decode step's tokens: `tokens`, int64 [bucket], whose values on the host are `values`."""

    def advance(self, readings: Readings) -> None:
        """Move every row on by one position, after a step."""

    def put_rows(self, tokens: list[int], positions: list[int], readings: Readings) -> None:
        """Set a decode step's tokens and positions, one of each per row of the bucket, from the host."""


class DeviceFeed:
    """By operators on the device, which the host has to issue as it does the step's: they are dispatch."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._token_row = buffers.token_row
        self._positions = buffers.positions
        self._one = buffers.one
        self._rows = torch.zeros(2, buffers.bucket, dtype=torch.int64, pin_memory=buffers.token.is_cuda)
        self._host_rows = _words(self._rows.view(-1))

    def put_chunk(self, chunk: Tensor, begin: int, last: Tensor, readings: Readings) -> None:
        """Three operators, without a wait."""
        began = perf_counter_ns()
        _write_chunk(self._buffers, chunk, begin, last)
        readings.feed.append(perf_counter_ns() - began)

    def put(self, tokens: Tensor, values: list[int], readings: Readings) -> None:
        """One operator on the device, without a wait."""
        began = perf_counter_ns()
        self._token_row.copy_(tokens)
        readings.feed.append(perf_counter_ns() - began)

    def advance(self, readings: Readings) -> None:
        """One operator. It runs behind the step that `put` was called for, whose entry it is added to."""
        began = perf_counter_ns()
        self._positions.add_(self._one)
        readings.feed[-1] += perf_counter_ns() - began

    def put_rows(self, tokens: list[int], positions: list[int], readings: Readings) -> None:
        """Two copies out of pinned memory, which the device has read by the time the step is waited for."""
        began = perf_counter_ns()
        bucket = len(self._positions)
        for index, value in enumerate((*tokens[:bucket], *positions[:bucket])):
            self._host_rows[index] = value
        self._token_row.copy_(self._rows[0], non_blocking=True)
        self._positions.copy_(self._rows[1], non_blocking=True)
        readings.feed.append(perf_counter_ns() - began)


class HostFeed:
    """Word by word in the same memory; on no clock, because it is microseconds of a step's milliseconds.

    After a step, whose weights have passed through the caches, an operator of torch costs more than the whole
    loop, and one of NumPy twice that: their dispatchers' code has to be fetched again.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._tokens = _words(buffers.token_row)
        self._positions = _words(buffers.positions)

    def put_chunk(self, chunk: Tensor, begin: int, last: Tensor, readings: Readings) -> None:
        """By operators: once per chunk."""
        _write_chunk(self._buffers, chunk, begin, last)

    def put(self, tokens: Tensor, values: list[int], readings: Readings) -> None:
        """The tokens are on the host already."""
        row = self._tokens
        for index, value in enumerate(values):
            row[index] = value

    def advance(self, readings: Readings) -> None:
        """In place."""
        positions = self._positions
        for index in range(len(positions)):
            positions[index] += 1

    def put_rows(self, tokens: list[int], positions: list[int], readings: Readings) -> None:
        """Word by word, as `put`."""
        token_row, position_row = self._tokens, self._positions
        for index in range(len(token_row)):
            token_row[index] = tokens[index]
            position_row[index] = positions[index]


def _write_chunk(buffers: Buffers, chunk: Tensor, begin: int, last: Tensor) -> None:
    buffers.chunks[chunk.shape[1]].copy_(chunk, non_blocking=True)
    buffers.positions.fill_(begin)
    buffers.last.copy_(last, non_blocking=True)


def _words(tensor: Tensor) -> memoryview:
    """The elements of `tensor`, int64 of one dimension on the host, as integers in its own memory."""
    address, size = tensor.data_ptr(), tensor.numel()
    return memoryview((c_int64 * size).from_address(address)).cast("B").cast("q")


def new_feed(buffers: Buffers) -> Feed:
    """The feed that fits the device of `buffers`."""
    return DeviceFeed(buffers) if buffers.token.is_cuda else HostFeed(buffers)
