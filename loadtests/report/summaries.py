"""What is known of a cell (phases, parts, payback) and of a group of cells, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import polars as pl

from loadtests.plan.cells import BASELINE, Cell, Group
from loadtests.report.words import WORDS, Words
from service.records import Phase, SampleCounts
from service.statistics.boundedness import (
    UNPROVED,
    LeftOpen,
    Split,
    bound_in_words,
    device_bound_index,
    dispatch_share,
    index_interval,
)
from service.statistics.choice import Choice, Comparison, baseline_of
from service.statistics.intervals import Interval

_MEANS = (
    *("steps", "wall_seconds", "dispatch_seconds", "dispatch_low_seconds", "dispatch_high_seconds"),
    *("kernel_seconds", "sync_wait_seconds", "minor_faults"),
)


@dataclass(frozen=True, slots=True)
class PhaseMeans:
    """One phase of a cell's requests; seconds, steps and `minor_faults` are means per request, or call.

    None: not measured on this device, or not recorded in this folder. `index` is the kernel share. Its
    `interval` is that of the cell's `samples`, or without any the dispatch interval of the rows and the
    scatter of the rounds; None where rows of an estimate carry no interval. `estimated`: dispatch and kernel
    are on one timeline, a CPU's.
    """

    name: Phase
    steps: float | None
    wall_seconds: float | None
    dispatch_seconds: float | None
    dispatch_low_seconds: float | None
    dispatch_high_seconds: float | None
    kernel_seconds: float | None
    sync_wait_seconds: float | None
    minor_faults: float | None
    samples: SampleCounts | None
    estimated: bool
    index: float | None
    interval: Interval | None

    @property
    def bound(self) -> str | None:
        """On a GPU the class of the share, or between which it is undecided; None without its interval."""
        return bound_in_words(self.interval) if self.interval and not self.estimated else None

    @property
    def headroom(self) -> Interval | None:
        """On a CPU how many times as fast the phase would be without dispatch; None without the interval."""
        if self.index is None or self.interval is None or not self.estimated:
            return None
        shares = (self.index, self.interval.high, self.interval.low)
        value, low, high = (1 / share if share > 0 else math.inf for share in shares)
        return Interval(value, low, high, self.interval.samples)

    @property
    def step_dispatch_seconds(self) -> float | None:
        return (
            self.dispatch_seconds / self.steps if self.dispatch_seconds is not None and self.steps else None
        )


def phase_of(
    rows: pl.DataFrame,
    name: Phase,
    samples: SampleCounts | None,
    estimated: bool,
    left_open: LeftOpen = UNPROVED,
) -> PhaseMeans:
    """The phase `name` of the measured `rows` of one cell.

    By `samples` of the cell, if any, whose errors `left_open` bounds; `estimated` as in PhaseMeans.
    """
    averages = rows.select(pl.col(f"{name}_{field}").mean() for field in _MEANS).row(0)
    means = dict(zip(_MEANS, averages, strict=True))
    if samples is None:
        interval = index_interval(_splits_by_round(rows, name))
    else:
        interval = _kernel_share(samples, left_open)
        ends = (1 - interval.high, 1 - interval.low) if interval else (None, None)
        for end, share in zip(("low", "high"), ends, strict=True):
            means[f"dispatch_{end}_seconds"] = None if share is None else means["wall_seconds"] * share
    return PhaseMeans(
        name=name,
        **means,
        samples=samples,
        estimated=estimated,
        index=device_bound_index(means["kernel_seconds"], means["dispatch_seconds"]),
        interval=interval,
    )


def _kernel_share(samples: SampleCounts, left_open: LeftOpen) -> Interval | None:
    share = dispatch_share(samples, left_open)
    return share and Interval(1 - share.value, 1 - share.high, 1 - share.low, samples.kernel + samples.host)


def _splits_by_round(rows: pl.DataFrame, name: Phase) -> list[Split]:
    """Per round the sums of dispatch, kernel and dispatch's ends, over the rows that have all of them."""
    columns = [f"{name}_{part}_seconds" for part in ("dispatch", "kernel", "dispatch_low", "dispatch_high")]
    complete = rows.lazy().select("round", *columns).drop_nulls()
    sums = complete.group_by("round").agg(pl.col(columns).sum()).sort("round").select(columns).collect()
    return [Split(*values) for values in sums.rows()]


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
    where that was never seen. `all_seconds` and `all_cold_seconds` are the same of all batch buckets, which
    must be compiled before the mode is ready.
    """

    seconds: float
    cache: CacheState
    cold_seconds: float | None
    all_seconds: float
    all_cold_seconds: float | None


@dataclass(frozen=True, slots=True)
class Payback:
    """Requests of one batch size until `cost` is paid back, against `reference`: by this start, and cold.

    `all_requests` and `all_cold_requests` pay back the compilations of all batch buckets. `reference` is the
    best mode without a compiler. `cost` None: nothing is compiled, or it is unknown.
    """

    reference: str | None
    cost: Cost | None
    requests: Requests
    cold_requests: Requests
    all_requests: Requests
    all_cold_requests: Requests

    @classmethod
    def of_none(cls, reference: str | None, cost: Cost | None, reason: Reason) -> Payback:
        return cls(reference, cost, reason, reason, reason, reason)


def is_compiled(status: Mapping[str, Any]) -> bool:
    return bool(status.get("compilations") or status.get("compile_seconds"))


def bucket_of(batch_size: int, buckets: list[int]) -> int:
    return min((bucket for bucket in buckets if bucket >= batch_size), default=batch_size)


def cost_of(status: Mapping[str, Any], bucket: int) -> Cost | None:
    """The cost of a mode's compilations for `bucket`; None where they are not recorded one by one."""
    # Runs of method 4 and before have a second model's beside the mode's own.
    every = [c for c in status.get("compilations") or [] if not c.get("twin")]
    own = [compilation for compilation in every if compilation["batch"] == bucket]
    if not own:
        return None
    cold = [bool(compilation["cold"]) for compilation in own]
    return Cost(
        seconds=sum(compilation["seconds"] for compilation in own),
        cache="cold" if all(cold) else "partly warm" if any(cold) else "warm",
        cold_seconds=_cold_seconds(own),
        all_seconds=sum(compilation["seconds"] for compilation in every),
        all_cold_seconds=_cold_seconds(every),
    )


def _cold_seconds(compilations: list[dict[str, Any]]) -> float | None:
    total = 0.0
    for compilation in compilations:
        seconds = compilation["seconds"] if compilation["cold"] else compilation.get("cold_seconds")
        if seconds is None:
            return None
        total += seconds
    return total


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
        return Payback.of_none(reference, cost, reason)
    if cost is None:
        return Payback.of_none(reference, None, "unknown")
    ends = [reference_seconds * (1 - 1 / end) for end in (comparison.speedup.low, comparison.speedup.high)]
    saved = (reference_seconds - own_seconds, *ends)
    spent = (cost.seconds, cost.cold_seconds, cost.all_seconds, cost.all_cold_seconds)
    return Payback(reference, cost, *(_count(seconds, *saved) for seconds in spent))


def _count(seconds: float | None, saved: float, least_saved: float, most_saved: float) -> Requests:
    """Every round counts for the speed-up's ends, and both modes' own for `saved`, which may lie outside."""
    if seconds is None:
        return "unknown"
    typical, most, least = (math.ceil(seconds / each) for each in (saved, least_saved, most_saved))
    return Count(typical, min(typical, least), max(typical, most))


NOTHING = Payback.of_none(None, None, "nothing to pay back")


@dataclass(frozen=True, slots=True)
class Summary:
    """One cell over all rounds. `effective` None: it is unknown.

    `latency` is the typical round's median, `mean_seconds` the mean over requests: `parts`, mean seconds per
    request (None where this device has none), and `outside_seconds` add up to the latter. Of a module these,
    and `phases`, are of one call, and there is no outside. `estimated`:
    dispatch and kernel are shares of the wall time, a CPU's. `comparison` is against the baseline's cell of
    the same group, `against_plain` against the best mode without a compiler; None for that cell itself.
    """

    cell: Cell
    effective: str | None
    requests: int
    latency: Interval
    latency_p95_seconds: float
    mean_seconds: float
    throughput: Interval
    first_token: Interval | None
    parts: dict[str, float | None]
    total_seconds: float | None
    outside_seconds: float | None
    phases: tuple[PhaseMeans, ...]
    prompt_tokens: float | None
    padded_prompt_tokens: float | None
    attended_tokens: float | None
    estimated: bool
    disturbed: bool
    comparison: Comparison | None
    against_plain: Comparison | None
    payback: Payback

    @property
    def runs_as(self) -> str:
        """What its mode runs as on this device, in words, where that is known to be something else."""
        return f"runs as {self.effective}" if self.effective not in (None, self.cell.mode) else ""

    @property
    def words(self) -> Words:
        return WORDS[self.cell.workload.name]

    def phase(self, name: Phase) -> PhaseMeans:
        return next(phase for phase in self.phases if phase.name == name)

    @property
    def main(self) -> PhaseMeans:
        """The phase that stands for the mode."""
        return self.phase(self.cell.workload.main)

    @property
    def minor_faults(self) -> float | None:
        """Page faults per request or call, means of all phases; None where they were not recorded."""
        counts = [phase.minor_faults for phase in self.phases if phase.minor_faults is not None]
        return sum(counts) if counts else None

    @property
    def skew_seconds(self) -> float:
        """Mean latency − typical latency: what separates the sum of the parts from the latency shown."""
        return self.mean_seconds - self.latency.value


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one group: which mode to ship. `choice` None: too few rounds to decide.

    `noise` is the interval of the baseline's ratio to itself, measured twice; None without a control cell.
    """

    group: Group
    summaries: tuple[Summary, ...]
    noise: Interval | None
    choice: Choice | None

    @property
    def batch_size(self) -> int:
        return self.group[0]

    @property
    def baseline(self) -> Summary:
        return self.of(BASELINE)

    @property
    def plain(self) -> Summary:
        """The cell that the answer is against: the best mode without a compiler."""
        return self.of(baseline_of(summary.cell.mode for summary in self.modes))

    @property
    def shipped(self) -> Summary | None:
        return None if self.choice is None else self.of(self.choice.ship)

    def of(self, mode: str) -> Summary:
        """The cell of `mode`, not the control."""
        return next(s for s in self.summaries if s.cell.mode == mode and not s.cell.control)

    @property
    def modes(self) -> list[Summary]:
        """All but the control cell, in the ladder's order."""
        return [summary for summary in self.summaries if not summary.cell.control]
