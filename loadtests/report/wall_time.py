"""What a sweep's time went to: measured requests, and what surrounds them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from loadtests.report.results import Results
from loadtests.run.run_file import Part

_MEASURED = "measure"
_VISIT = (_MEASURED, "sample")
"""Stages that take turns in a visit: requests that are timed, and one whose steps are sampled."""

LEAST_SHOWN = 0.005
"""A smaller share of the time is left out of the text."""

_INSTANTS = (
    *("cell", "round", "part", "intended_start", "start"),
    (pl.col("start") + pl.col("latency_seconds")).alias("end"),
    (pl.col("load").is_not_null() | pl.col("rate").is_not_null()).alias("open_loop"),
)

_Spans = dict[str, tuple[float, float]]
"""By stage the first start and the last answer of one part, in Unix seconds."""


@dataclass(frozen=True, slots=True)
class WallTime:
    """Seconds of a sweep, the gaps between its parts left out.

    `total`: from the service being ready to the end; where a run does not have that instant, from the first
    request to the last. Of these, in `measured` at least one measured request was under way, in `sampled`
    none but one whose steps were sampled, which is in no latency; in `idle` an open-loop visit waited for its
    next arrival; `between` lies between other measured requests, `warm_up` between a part's first request and
    its first that is no warm-up. `before`: from the command's start to the service being ready.
    """

    total: float
    measured: float
    sampled: float
    idle: float
    between: float
    warm_up: float
    before: float | None

    @property
    def measured_share(self) -> float:
        """Share of `total` in which a measured request was under way."""
        return self.measured / self.total

    @property
    def text(self) -> str:
        """'55 % of 21 min 4 s with the service up; sampled requests 28 %, … . 4 min 2 s before that'."""
        named = {
            "sampled requests": self.sampled,
            "warm-up": self.warm_up,
        }
        named |= {"waiting for arrivals": self.idle, "between requests": self.between}
        named["the rest"] = self.total - self.measured - sum(named.values())
        shares = {name: seconds / self.total for name, seconds in named.items()}
        shown = [f"{name} {_share(share)}" for name, share in shares.items() if share >= LEAST_SHOWN]
        since = "from the first request to the last" if self.before is None else "with the service up"
        text = f"{_share(self.measured_share)} of {_duration(self.total)} {since}"
        if shown:
            text += f"; {', '.join(shown)}"
        if self.before is not None:
            text += f". Until the service was ready: {_duration(self.before)}"
        return text


def wall_time(results: Results) -> WallTime:
    """Where the time of a sweep went, by its rows and the instants of its parts."""
    run = results.run
    parts = {part.number: part for part in run.parts}
    began = {part.number: part.started for part in run.parts} | {1: run.started}
    spans = _spans(results.rows)
    known = all(number in parts and parts[number].ready for number in spans)
    seconds = defaultdict[str, float](float)
    for number, of_part in spans.items():
        for name, spent in _of_part(of_part, parts[number] if known else None).items():
            seconds[name] += spent
        if known:
            seconds["before"] += _instant(parts[number].ready) - _instant(began[number])
    visits = results.rows.lazy().filter(pl.col("stage").is_in(_VISIT))
    rows = visits.select(*_INSTANTS)
    measured = _under_way(visits.filter(pl.col("stage") == _MEASURED).select(*_INSTANTS))
    sampled, idle = _under_way(rows) - measured, _idle(rows)
    return WallTime(
        total=seconds["total"],
        measured=measured,
        sampled=sampled,
        idle=idle,
        between=seconds[_MEASURED] - measured - sampled - idle,
        warm_up=seconds["warmup"],
        before=seconds["before"] if known else None,
    )


def _spans(rows: pl.DataFrame) -> dict[int, _Spans]:
    """By part, the spans of its stages."""
    end = (pl.col("start") + pl.col("latency_seconds")).max()
    stage = pl.col("stage").cast(pl.String).replace(dict.fromkeys(_VISIT, _MEASURED))
    edges = rows.lazy().group_by("part", stage).agg(pl.col("start").min(), end.alias("end")).collect()
    found: dict[int, _Spans] = {}
    for part, stage, first, last in edges.sort("part", "start").rows():
        found.setdefault(part, {})[stage] = (first, last)
    return found


def _of_part(spans: _Spans, part: Part | None) -> dict[str, float]:
    """Seconds of one part in all and by stage; `part` None: from its first request to its last."""
    first, last = min(start for start, _ in spans.values()), max(end for _, end in spans.values())
    found = {stage: end - start for stage, (start, end) in spans.items()}
    if "warmup" in spans:
        # Up to the next stage: between passes the service's counters are read.
        later = [start for stage, (start, _) in spans.items() if stage != "warmup"]
        found["warmup"] = min(later, default=spans["warmup"][1]) - spans["warmup"][0]
    if part is None:
        return found | {"total": last - first}
    # A part that was killed ended with its last answer.
    end = max(last, _instant(part.ended)) if part.ended else last
    return found | {"total": end - _instant(part.ready)}


def _under_way(rows: pl.LazyFrame) -> float:
    """Seconds in which at least one request was under way: the union of their intervals."""
    reached = pl.col("end").cum_max().shift(1)
    uncovered = pl.col("end") - pl.max_horizontal("start", reached)
    return float(rows.sort("start").select(uncovered.clip(lower_bound=0.0).sum()).collect().item())


def _idle(rows: pl.LazyFrame) -> float:
    """Seconds of open-loop visits, from the first arrival to the last answer, with no request under way."""
    opened = rows.filter(pl.col("open_loop"))
    spans = opened.group_by("cell", "round", "part").agg(pl.col("end").max() - pl.col("intended_start").min())
    return float(spans.select(pl.col("end").sum()).collect().item()) - _under_way(opened)


def _instant(text: str | None) -> float:
    """Unix seconds of an instant of `run.json`."""
    assert text is not None
    return datetime.fromisoformat(text).timestamp()


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
