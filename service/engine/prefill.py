"""Fills the cache with prompts, chunk by chunk, in one batch bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from service.engine.feed import Feed
from service.engine.prompts import lay_out
from service.step.buffers import Buffers
from service.step.callables import Step
from service.step.meters import Meter, Readings


@dataclass(frozen=True, slots=True)
class Place:
    """Where steps of one batch bucket run: its static inputs, and what writes them."""

    buffers: Buffers
    feed: Feed


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What the last token of each prompt predicts: `logits` [bucket, vocabulary], `greedy` int64 [bucket].

    `lengths`, int64 [bucket] on the host, are the tokens of each row, `padded` those that were computed.
    """

    logits: Tensor
    greedy: Tensor
    lengths: Tensor
    padded: int


def prefill(
    prompts: list[list[int]],
    place: Place,
    step: Step,
    meter: Meter,
    readings: Readings,
    between: Callable[[], None],
) -> Prefilled:
    """Run `step` over `prompts` in the first rows of the cache; `between` is called before every chunk.

    Rows are padded on the right. What padding writes to the cache lies behind a row's own positions and is
    overwritten by decode before anything may attend to it.
    """
    buffers = place.buffers
    layout = lay_out(prompts, buffers.bucket, list(buffers.chunks), pinned=buffers.token.is_cuda)
    logits = greedy = None
    begin = 0
    try:
        for index, chunk in enumerate(layout.chunks):
            between()
            length = chunk.shape[1]
            arguments = buffers.arguments("prefill", length, buffers.reach(begin + length))
            place.feed.put_chunk(chunk, begin, layout.last[index], readings)
            new_logits, new_greedy = meter.run(step, arguments, readings)
            begin += length
            if logits is None or greedy is None:
                logits, greedy = new_logits, new_greedy
                if len(layout.chunks) > 1:
                    # Kept by copy: another chunk follows, and a graph replay overwrites its last output.
                    logits, greedy = logits.clone(), greedy.clone()
            else:
                contains = layout.contains[index].to(new_logits.device, non_blocking=True)
                logits = torch.where(contains.unsqueeze(1), new_logits, logits)
                greedy = torch.where(contains, new_greedy, greedy)
    finally:
        # Given up between two chunks, it would else be what steps of this bucket go by.
        buffers.last.zero_()
    assert logits is not None
    assert greedy is not None
    return Prefilled(logits, greedy, layout.lengths, begin)
