"""The finding of a timeline: a track per mode, with its blocks and the step's time without a profiler."""

from __future__ import annotations

import math

import msgspec

from service.anatomy.timeline.blocks import TraceBlock
from service.anatomy.timeline.tax import Tax
from service.protocol.messages import Phase
from service.statistics.intervals import Interval


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """One mode's step. Blocks are timed from its begin under the profiler, `profiled_seconds` in all.

    `wall` is the step's seconds without a profiler, and `stretch` the profiled step over it: blocks give the
    order of events, `wall` and `tax` their length. `kernels` and `launches` are None on a CPU, and `kernels`
    where the profiler lost some. Where `tax` is None, `no_tax` has the reason.
    """

    mode: str
    effective: str
    reason: str | None
    wall: Interval
    tax: Tax | None
    no_tax: str | None
    profiled_seconds: float
    stretch: float
    operators: int
    kernels: int | None
    launches: int | None
    kernel_seconds: float | None
    blocks: list[TraceBlock]


class TimelineFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One or two tracks, each from the begin of its own step, and the names of the files written.

    `speedup`: how many times as fast the second track's step is as the first's, without a profiler; the
    median of paired rounds, None for one track. `notes` say what else was at work in `wall`.
    """

    device: str
    batch_bucket: int
    phase: Phase
    tracks: list[Track]
    speedup: Interval | None = None
    files: list[str]
    notes: list[str] = []


def interval_text(interval: Interval, scale: float, unit: str) -> str:
    """The value and its finite bounds times `scale`, in whole numbers of `unit`."""
    value = f"{scale * interval.value:.0f}{unit}"
    if not math.isfinite(interval.low) or not math.isfinite(interval.high):
        return value
    return f"{value} [{scale * interval.low:.0f}, {scale * interval.high:.0f}]"


def tax_text(track: Track) -> str:
    """The tax in percent, or a dash."""
    return "–" if track.tax is None else interval_text(track.tax.fraction, 100, " %")


def speedup_text(speedup: Interval) -> str:
    """A speed-up with its interval."""
    return f"{speedup.value:.2f} times as fast [{speedup.low:.2f}, {speedup.high:.2f}]"


def tax_source_text(finding: TimelineFinding) -> str:
    """How the tax was obtained, or why it is unknown; both where the tracks differ."""
    hows = dict.fromkeys(
        track.tax.how if track.tax is not None else f"not known: {track.no_tax}" for track in finding.tracks
    )
    return "; ".join(hows)
