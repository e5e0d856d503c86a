"""Prompts that begin together are prefilled in groups, in the buckets that take least in sum.

Where the device computes all the time, a prefill takes as long as its bucket has rows, whoever is in it:
eight rows take half as long in two buckets of 4 as in one of 16. Where its dispatch decides, one bucket for
all takes least.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

BucketCosts = tuple[tuple[int, int], ...]
"""Each bucket and the nanoseconds of its prefill, in order."""

NO_WAY = 2**63


@lru_cache(maxsize=256)
def least_prefills(most: int, costs: BucketCosts) -> tuple[int, ...]:
    """Nanoseconds of the prefills of 0, 1, … `most` rows, of one prompt each."""
    least = [0]
    for rows in range(1, most + 1):
        least.append(min(cost + least[max(0, rows - bucket)] for bucket, cost in costs))
    return tuple(least)


def cheapest_groups(rows: Sequence[int], free: int, costs: BucketCosts) -> list[int]:
    """How many of those that join, each with its `rows`, are prefilled together, one group after the other.

    A group runs in the smallest bucket that holds it, whose rows have to be among the `free` ones that those
    before it have left; of equally cheap ways it is the one with the largest groups first. Who finds no room
    in any way is a group, whose prefill then fails.
    """
    ends = [0, *accumulate(rows)]
    ways: list[tuple[int, int]] = [(0, 0)] * len(ends)
    for first in reversed(range(len(rows))):
        # The cost from here on, and how many are in the group that begins here.
        ways[first] = NO_WAY, -1
        fitting = [one for one in costs if one[0] <= free - ends[first]]
        for after in range(first + 1, len(ends)):
            cost = next((cost for bucket, cost in fitting if bucket >= ends[after] - ends[first]), None)
            if cost is None:
                break
            ways[first] = min(ways[first], (cost + ways[after][0], first - after))
    found, first = [], 0
    while first < len(rows):
        found.append(-ways[first][1])
        first += found[-1]
    return found
