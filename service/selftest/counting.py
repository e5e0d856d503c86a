"""How sure a count is: exact intervals of a share, and the rule for 'at least so many of'."""

from __future__ import annotations

from scipy.special import betaincinv

from service.selftest.results import CheckResult, Verdict
from service.statistics.intervals import Interval


def share_interval(count: int, total: int, confidence: float = 0.95) -> Interval:
    """The share `count / total` with its Clopper-Pearson interval."""
    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, tail))
    high = 1.0 if count == total else float(betaincinv(count + 1, total - count, 1 - tail))
    return Interval(count / total, low, high, total)


def at_least(name: str, count: int, total: int, needed: int, note: str = "") -> CheckResult:
    """`pass` at `needed` or more; `fail` where the true share is surely under it; between, `undecided`."""
    share = share_interval(count, total)
    verdict: Verdict = "pass" if count >= needed else "fail" if share.high < needed / total else "undecided"
    return CheckResult(
        name=name,
        bound=f"at least {needed} of {total}",
        verdict=verdict,
        value=count,
        low=share.low * total,
        high=share.high * total,
        unit=f"of {total}",
        note=note,
    )
