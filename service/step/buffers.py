"""The static inputs of a step: allocated once per batch bucket, shared by all modes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.served import Cache, Served
from service.protocol.messages import Phase


@dataclass(frozen=True, slots=True)
class Buffers:
    """The static inputs of one batch bucket; every mode reads and writes the same ones.

    `chunk` is int64 [bucket, prefill chunk]; `token` int64 [bucket, 1], of which `token_row` is a view
    [bucket]; `positions` and `last` are int64 [bucket]; `one` is an int64 1 on the device, [1]; `cache`
    holds the first `bucket` rows of the shared cache.
    """

    bucket: int
    chunk: Tensor
    token: Tensor
    token_row: Tensor
    positions: Tensor
    last: Tensor
    one: Tensor
    cache: Cache

    def arguments(self, phase: Phase) -> tuple[Tensor, Tensor, Tensor, Cache]:
        """What a step of `phase` is called with."""
        tokens = self.token if phase == "decode" else self.chunk
        return tokens, self.positions, self.last, self.cache


def allocate(
    model: Served, buckets: list[int], prefill_chunk: int, cache_dtype: torch.dtype | None = None
) -> dict[int, Buffers]:
    """Buffers for every bucket over one cache, with static addresses so that graphs need not copy them.

    The cache has the dtype of the weights unless `cache_dtype` is given.
    """
    parameter = next(model.parameters())
    largest = max(buckets)
    cache = model.new_cache(largest, cache_dtype or parameter.dtype)

    def integers(*shape: int) -> Tensor:
        return static(torch.zeros(shape, dtype=torch.int64, device=parameter.device))

    def static(tensor: Tensor) -> Tensor:
        # A marked input may be mutated inside a CUDA graph and is not copied into it at every replay.
        torch._dynamo.mark_static_address(tensor)
        return tensor

    def buffers(bucket: int) -> Buffers:
        token = integers(bucket, 1)
        return Buffers(
            bucket=bucket,
            chunk=integers(bucket, prefill_chunk),
            token=token,
            token_row=token.view(bucket),
            positions=integers(bucket),
            last=integers(bucket),
            one=integers(1).add_(1),
            cache=tuple((static(k[:bucket]), static(v[:bucket])) for k, v in cache),
        )

    return {bucket: buffers(bucket) for bucket in buckets}


def prepare(buffers: Buffers, position: int = 0) -> Tensor:
    """Set `buffers` for a single decode step at `position`; returns its tokens, int64 [bucket, 1]."""
    buffers.positions.fill_(position)
    buffers.last.zero_()
    return buffers.token
