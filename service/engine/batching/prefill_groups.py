"""Prompts that begin together are prefilled in groups, in the buckets that take least in sum."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

BucketCosts = tuple[tuple[int, int], ...]
"""Each bucket and the nanoseconds of its prefill."""


class Prefills(NamedTuple):
    """Of a number of rows: the nanoseconds of all their prefills, and the most rows of the first of them."""

    nanoseconds: int
    first: int


@lru_cache(maxsize=256)
def cheapest_prefills(most: int, costs: BucketCosts) -> tuple[Prefills, ...]:
    """Those of 0, 1, … `most` rows.

    Where the device computes all the time, a prefill takes as long as its bucket has rows, whoever is in it:
    eight rows take half as long in two buckets of 4 as in one of 16. Where its dispatch decides, one bucket
    for all takes least.
    """
    found = [Prefills(0, 0)]
    for rows in range(1, most + 1):
        ways = (Prefills(cost + found[max(0, rows - bucket)].nanoseconds, bucket) for bucket, cost in costs)
        found.append(min(ways, key=lambda way: (way.nanoseconds, -way.first)))
    return tuple(found)
