"""What one visit of an open-loop cell shows of its rate. Imports nothing of ours.

A visit starts with an empty queue, so its first requests wait too little: they are sent and not judged.
"""

from __future__ import annotations

from collections.abc import Sequence

SETTLING_SHARE = 0.25
"""Of a visit's requests, the first, which fill the queue."""

KEEPING_UP_AFTER = 0.5
"""Where answers are compared with arrivals, as much is left out: a queue that still fills looks saturated."""


def settling(requests: int, share: float = SETTLING_SHARE) -> int:
    """How many of a visit's first requests are not judged; at least one, at most all but one."""
    return min(max(1, round(share * requests)), max(0, requests - 1))


def served_share(due: Sequence[float], ended: Sequence[float | None], left_out: int) -> float:
    """Rate of the answers over the rate offered, from the last of the first `left_out` requests on.

    `due` ascends; `ended` is when each was answered, None where it was not. In the long run 1 below
    saturation; in one visit it scatters around it, above 1 too. Raises ValueError where none or all are left
    out.
    """
    if not 0 < left_out < len(due):
        raise ValueError(f"of {len(due)} requests {left_out} cannot be left out: send at least two")
    first = left_out - 1
    before = [end for end in ended[: first + 1] if end is not None]
    after = [end for end in ended[first + 1 :] if end is not None]
    if not after:
        return 0.0
    answered = len(after) / (len(due) - 1 - first)
    span = max(after) - max(before, default=due[first])
    return answered * (due[-1] - due[first]) / span if span > 0 else 0.0
