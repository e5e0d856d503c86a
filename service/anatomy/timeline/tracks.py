"""What a timeline is: one track per mode, with its blocks and what the step took without a profiler."""

from __future__ import annotations

import msgspec

from service.anatomy.timeline.blocks import Block
from service.anatomy.timeline.tax import Tax
from service.measure.estimate import Estimate
from service.protocol.messages import Phase


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """One mode's step. Blocks count from its begin, in times under the profiler, `profiled_seconds` in all.

    `wall` is the same step without a profiler, and `stretch` how many times longer it was with it: blocks
    show what comes after what, `wall` and `tax` how long. `kernels` and `launches` are None on a CPU. Where
    `tax` is None, `no_tax` says why.
    """

    mode: str
    effective: str
    reason: str | None
    wall: Estimate
    tax: Tax | None
    no_tax: str | None
    profiled_seconds: float
    stretch: float
    operators: int
    kernels: int | None
    launches: int | None
    kernel_seconds: float | None
    blocks: list[Block]


class TimelineFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One or two tracks, each with its own step's begin as 0, and the files that were asked for."""

    device: str
    batch_bucket: int
    phase: Phase
    tracks: list[Track]
    files: list[str]


def interval_words(value: float, low: float | None, high: float | None, scale: float, unit: str) -> str:
    """A value with its bounds, where it has any, in whole numbers of `unit`."""
    bounds = "" if low is None or high is None else f" [{scale * low:.0f}, {scale * high:.0f}]"
    return f"{scale * value:.0f}{unit}{bounds}"


def words_of_tax(track: Track) -> str:
    """The tax in percent, or a dash."""
    return (
        "–"
        if track.tax is None
        else interval_words(track.tax.fraction, track.tax.low, track.tax.high, 100, " %")
    )


def how_taxed(finding: TimelineFinding) -> str:
    """How the tax is known, or why it is not."""
    first = finding.tracks[0]
    return first.tax.how if first.tax is not None else f"not known: {first.no_tax}"
