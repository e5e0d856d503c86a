"""What decode steps of a batch have in common until its members change, and the choice of their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from torch import Tensor

from service.engine.batching.member import Member
from service.engine.batching.slots import Slots
from service.engine.feed import Feed
from service.engine.prefill import Place
from service.protocol.messages import Phase
from service.step.buffers import Arguments
from service.step.callables import Step
from service.step.meters import Readings


@dataclass(frozen=True, slots=True)
class Round:
    """A decode step of `rows` sequences in `bucket` rows, over `reach` positions of the cache.

    It holds until somebody joins or leaves, or a longer reach is needed: looked up for every step, it took
    longer than all else between two steps. `choosing` have more than the greedy token to choose from.
    """

    bucket: int
    rows: int
    reach: int
    feed: Feed
    step: Step
    arguments: Arguments
    choosing: list[Member]


def new_round(
    slots: Slots,
    places: Mapping[int, Place],
    steps: Mapping[tuple[Phase, int], Step],
    members: Sequence[Member],
) -> Round:
    """The next steps of `members`, whose rows are moved into the smallest bucket that holds them."""
    bucket = slots.compact()
    place = places[bucket]
    reach = place.buffers.reach(slots.used)
    return Round(
        bucket=bucket,
        rows=slots.taken,
        reach=reach,
        feed=place.feed,
        step=steps["decode", bucket],
        arguments=place.buffers.arguments("decode", reach=reach),
        choosing=[member for member in members if member.sampler.looks_at_logits],
    )


def choose(members: Sequence[Member], logits: Tensor, greedy: Tensor, readings: Readings) -> Tensor:
    """The next tokens, int64 [bucket]: those of `members` that sample by each one's own sampler as if it were
    alone, all others greedy.

    One entry of `readings.sampling` for all of them, the copies from and to their rows included.
    """
    if not members:
        readings.sampling.append(0)
        return greedy
    began = perf_counter_ns()
    tokens = greedy
    for member in members:
        if member.sampler.looks_at_logits:
            tokens = greedy.clone() if tokens is greedy else tokens
            rows, unread = member.places(greedy.device), Readings()
            own = logits.index_select(0, rows), greedy.index_select(0, rows)
            tokens.index_copy_(0, rows, member.sampler.choose(*own, unread))
    readings.sampling.append(0 if tokens is greedy else perf_counter_ns() - began)
    return tokens
