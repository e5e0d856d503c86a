"""When a sweep looks whether its comparisons are decided, and how sure each look has to be for that.

Imports nothing else of ours. Sweep and report reckon both from the plan, so they cannot disagree.
"""

from __future__ import annotations

CONFIDENCE = 0.95
"""Of a verdict, over all looks together; of each interval that is looked at once."""

LOOKS = 3
"""A sweep looks at its comparisons this often at most, and stops at the first look that decides."""


def looks(least: int, most: int) -> tuple[int, ...]:
    """After how many rounds a sweep of `least` to `most` rounds looks whether it may stop.

    Up to LOOKS round counts, evenly spaced, `least` the first and `most` the last.
    """
    count = min(LOOKS, most - least + 1)
    if count <= 1:
        return (least,)
    return tuple(least + (most - least) * number // (count - 1) for number in range(count))


def confidence_of(look_count: int) -> float:
    """The confidence of each interval of a sweep that looks `look_count` times: 1 - 0.05 / looks.

    Bonferroni: whoever stops at the first look that shows a difference is wrong in at most the sum of the
    looks' error rates, 5 %. Looking three times at 95 % each would be wrong in about 10 %.
    """
    return 1 - (1 - CONFIDENCE) / look_count
