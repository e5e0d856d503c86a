"""After how many requests a mode's compilations have paid back, from a warm and from an empty cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from service.statistics.choice import Comparison

Reason = Literal["never", "undecided", "unknown", "nothing to pay back"]
CacheState = Literal["cold", "warm", "partly warm"]

REMEDY = "run once with an empty compile cache"


class Count(NamedTuple):
    """After how many requests a cost is paid back; [least, most] by the interval of the speed-up."""

    typical: int
    least: int
    most: int


Requests = Count | Reason


@dataclass(frozen=True, slots=True)
class Cost:
    """What one mode's compilations of one batch bucket took, decode and prefill, in seconds.

    `seconds` is this start's, from a compile cache that was `cache`; `cold_seconds` with an empty one, None
    where that was never seen.
    """

    seconds: float
    cache: CacheState
    cold_seconds: float | None


@dataclass(frozen=True, slots=True)
class Payback:
    """Requests of one batch size until `cost` is paid back, against `reference`: by this start, and cold.

    `reference` is the fastest mode without a compiler. `cost` None: nothing is compiled, or it is unknown.
    """

    reference: str | None
    cost: Cost | None
    requests: Requests
    cold_requests: Requests


def is_compiled(status: Mapping[str, Any]) -> bool:
    """Whether this mode compiled anything, by its status."""
    return bool(status.get("compilations") or status.get("compile_seconds"))


def bucket_of(batch_size: int, buckets: list[int]) -> int:
    """The batch bucket that a batch runs in."""
    return min((bucket for bucket in buckets if bucket >= batch_size), default=batch_size)


def cost_of(status: Mapping[str, Any], bucket: int) -> Cost | None:
    """The cost of a mode's compilations for `bucket`; None where they are not recorded one by one."""
    # Runs of method 4 and before have a second model's beside the mode's own.
    own = [c for c in status.get("compilations") or [] if c["batch"] == bucket and not c.get("twin")]
    if not own:
        return None
    cold = [bool(compilation["cold"]) for compilation in own]
    colds = [c["seconds"] if c["cold"] else c.get("cold_seconds") for c in own]
    return Cost(
        seconds=sum(compilation["seconds"] for compilation in own),
        cache="cold" if all(cold) else "partly warm" if any(cold) else "warm",
        cold_seconds=None if None in colds else sum(colds),
    )


def pay_back(
    reference: str, comparison: Comparison, reference_seconds: float, own_seconds: float, cost: Cost | None
) -> Payback:
    """ceil(cost / (the reference's seconds per request − the mode's)); `comparison` is reference over mode.

    Its ends are those of the speed-up s, by which a request saves reference · (1 − 1 / s). `never` where the
    mode is slower, or equal within 2 %; `undecided` where it cannot be told from the reference; `unknown`
    where the cost is.
    """
    if comparison.word != "faster" or own_seconds >= reference_seconds:
        sure = comparison.word == "slower" or (comparison.word != "undecided" and comparison.equivalent)
        reason: Reason = "never" if sure else "undecided"
        return Payback(reference, cost, reason, reason)
    if cost is None:
        return Payback(reference, None, "unknown", "unknown")
    ends = [reference_seconds * (1 - 1 / end) for end in (comparison.speedup.low, comparison.speedup.high)]
    saved = (reference_seconds - own_seconds, *ends)
    cold: Requests = "unknown" if cost.cold_seconds is None else _count(cost.cold_seconds, *saved)
    return Payback(reference, cost, _count(cost.seconds, *saved), cold)


def _count(seconds: float, saved: float, least_saved: float, most_saved: float) -> Count:
    """Every round counts for the speed-up's ends, and both modes' own for `saved`, which may lie outside."""
    typical, most, least = (math.ceil(seconds / each) for each in (saved, least_saved, most_saved))
    return Count(typical, min(typical, least), max(typical, most))


NOTHING = Payback(None, None, "nothing to pay back", "nothing to pay back")
