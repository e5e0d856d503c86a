"""Dispatch of steps of which some instants were sampled: its share of their time, and how sure that is.

Imports nothing of ours but the other statistics.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

CLASSES = 0.10
"""Of either part's samples, this many may be taken for the other's: the bound of the selftest's rows with
injected work. What a machine's own selftest leaves open beyond it is added (docs/method.md).
"""

RATE = 0.03
"""By so much sampling itself may shift a share, at 1,000 samples a second and fewer: the
most that two processors showed between that rate and none.
"""


class LeftOpen(NamedTuple):
    """What samples may get wrong, however many there are. The two are added: each says nothing of the other.

    `classes` of either part's samples may be taken for the other's; `rate` is how far sampling itself may
    shift a share, in points of that share.
    """

    classes: float
    rate: float


PROVED = LeftOpen(CLASSES, RATE)
"""What a selftest that passes leaves open."""

UNPROVED = LeftOpen(2 * CLASSES, 2 * RATE)
"""What is left open on a machine that no selftest stands for. Twice is a convention: nothing is measured
there, and an interval may not be narrower without a selftest than with one.
"""

_Z = 1.959964
"""Of the standard normal distribution, for 95 %."""


class DispatchShare(NamedTuple):
    """Of steps' wall time; [low, high] holds the truth."""

    value: float
    low: float
    high: float


def dispatch_share(
    kernel: int, host: int, unclassified: int, left_open: LeftOpen = UNPROVED
) -> DispatchShare | None:
    """From the numbers of samples on either side; the `unclassified` may be of either.

    The interval is Wilson's at 95 %, its low end with the unclassified on the kernels' side, its high end
    with them on the host's, widened by `widened`. None without a sample of kernel or host.
    """
    if not kernel + host:
        return None
    samples = kernel + host + unclassified
    low, _ = _wilson(host, samples)
    _, high = _wilson(host + unclassified, samples)
    return DispatchShare(host / (kernel + host), *widened(low, high, left_open))


def widened(low: float, high: float, left_open: LeftOpen = UNPROVED) -> tuple[float, float]:
    """The ends of a share of dispatch by samples, made wide enough for what is `left_open`.

    Of a true share H at least H · (1 − c) − r is seen as dispatch, at most H + (1 − H) · c + r; solved for H.
    """
    classes, rate = left_open
    if classes >= 1:
        return 0.0, 1.0
    return max(0.0, (low - rate - classes) / (1 - classes)), min(1.0, (high + rate) / (1 - classes))


def counting_error(kernel: int, host: int) -> float:
    """How far the 95 % interval of either share reaches from it, by the number of samples; 1 without any.

    To the side on which it reaches farther: near 0 and 1 that is nearly all of its width.
    """
    samples = kernel + host
    if not samples:
        return 1.0
    low, high = _wilson(host, samples)
    return max(high - host / samples, host / samples - low)


def _wilson(found: int, samples: int) -> tuple[float, float]:
    """The score interval of a share (Wilson 1927): it holds where none or all were found, too."""
    share, z2 = found / samples, _Z * _Z
    centre = (share + z2 / (2 * samples)) / (1 + z2 / samples)
    half = _Z * sqrt(share * (1 - share) / samples + z2 / (4 * samples**2)) / (1 + z2 / samples)
    return max(0.0, centre - half), min(1.0, centre + half)
