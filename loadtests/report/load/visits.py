"""The visits of open-loop cells: what was offered in each, what was answered, and what of it in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from loadtests.plan.cells import Cell, Slo
from loadtests.report.formatting import listed
from loadtests.report.results import Results
from service.statistics.intervals import KEEPING_UP_AFTER, answered, served_share, settling
from service.statistics.knee import SERVED_SHARE, replayed_waits

Kind = Literal["e2e", "ttft", "tpot"]

SECONDS: dict[Kind, pl.Expr] = {
    "e2e": pl.col("latency_from_intended_seconds"),
    "ttft": pl.col("latency_from_intended_seconds")
    - pl.col("latency_seconds")
    + pl.col("time_to_first_token_seconds"),
    "tpot": pl.when(pl.col("new_tokens") > 1).then(
        (pl.col("total_seconds") - pl.col("time_to_first_token_seconds")) / (pl.col("new_tokens") - 1)
    ),
}
"""Latencies of a row, from the instant at which it was due: until its answer, until its first token, and per
token after the first. Null where the service measured no first token, and per token where there is one."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """What a rate is judged by: the objectives `slo`, or without any whether answers keep up."""

    slo: Slo | None

    @property
    def least_share(self) -> float:
        """Of the requests, or of the offered rate, that must be served."""
        return SERVED_SHARE if self.slo is None else self.slo.share

    def limits(self, new_tokens: int) -> dict[Kind, float]:
        """The limits in seconds for requests of `new_tokens`; a single token has no time per further one."""
        if self.slo is None:
            return {}
        all_limits: dict[Kind, float | None] = {
            "e2e": self.slo.e2e_seconds,
            "ttft": self.slo.ttft_seconds,
            "tpot": self.slo.tpot_seconds if new_tokens > 1 else None,
        }
        return {kind: limit for kind, limit in all_limits.items() if limit is not None}

    @property
    def within(self) -> str:
        """The end of a sentence: 'within 100 ms, first token within 50 ms'."""
        if self.slo is None:
            return "before it saturates"
        limits = {
            "within {}": self.slo.e2e_seconds,
            "the first token within {}": self.slo.ttft_seconds,
            "at most {} per further token": self.slo.tpot_seconds,
        }
        shown = [text.format(_milliseconds(limit)) for text, limit in limits.items() if limit is not None]
        return listed(shown)

    @property
    def meaning(self) -> str:
        """What it takes for a rate to count as served."""
        share = f"{100 * self.least_share:.4g} %"
        if self.slo is None:
            return f"A rate counts as served where answers leave at {share} of the rate offered, or more."
        return f"A rate counts as served where at least {share} of the requests are answered {self.within}."


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"


Values = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Visit:
    """One visit of an open-loop cell. Its first requests, which fill the queue, are counted and not judged.

    `served` answers came in `served_seconds`, `in_time` of them in time; `kept_up_share` is the rate of
    answers over that of arrivals, in the second half; `met_share` is the share of requests in time, rejected
    ones being late. None: not known, or no objective. Latencies are of the judged answers. Where the queue
    only grew nobody is in time in the end, and latencies are infinite: what was seen of them says when it was
    cut. `queue_seconds` and `service_seconds` are of all answers in their order, `replayed_seconds` the
    waits that follow from arrivals and service alone; None where the service merges requests, which then do
    not wait in turn. `effective_batch` is the mean over the answers of the sequences per step; None of an
    older service.
    """

    round: int
    sent: int
    answers: int
    rejected: int
    cut: bool
    served: int
    served_seconds: float
    in_time: int | None
    kept_up_share: float
    met_share: float | None
    latencies: dict[Kind, Values]
    queue_seconds: Values
    service_seconds: Values
    replayed_seconds: Values | None
    effective_batch: float | None

    def share(self, criterion: Criterion) -> float | None:
        """What decides whether its rate was served."""
        if self.cut:
            return 0.0
        return self.kept_up_share if criterion.slo is None else self.met_share


def visits(results: Results, cell: Cell, criterion: Criterion) -> list[Visit]:
    """The whole visits of `cell`, by round.

    One that the end of a sweep interrupted, or that a resumed sweep sent in two parts, is left out: its queue
    was empty twice, or its end is missing.
    """
    rows = results.rows.lazy().filter(
        (pl.col("cell") == cell.name) & (pl.col("stage") == "measure") & ~pl.col("profiled")
    )
    columns = rows.with_columns(**{f"{kind}_judged": value for kind, value in SECONDS.items()}).collect()
    cut = {one.round for one in results.run.cut_visits if one.cell == cell.name}
    return list(_visits(columns, results, cell, cut, criterion))


def _visits(
    rows: pl.DataFrame, results: Results, cell: Cell, cut: set[int], criterion: Criterion
) -> Iterator[Visit]:
    sent = _sent(results, cell)
    for (number,), own in rows.sort("intended_start").group_by("round", maintain_order=True):
        ends_cut = number in cut
        whole = sent.get(int(number), 0) >= cell.requests and own["part"].n_unique() == 1
        # Of one that was cut and whose last answers a resumed part sent again, that in which the queue grew.
        grown = own.filter(pl.col("part") == pl.col("part").mode().min()) if ends_cut else own
        if (whole or ends_cut) and grown.height > 1:
            yield _visit(int(number), grown, ends_cut, cell, criterion.limits(cell.new_tokens))


def _sent(results: Results, cell: Cell) -> dict[int, int]:
    """Requests by round, profiled ones too."""
    rows = results.rows.lazy().filter((pl.col("cell") == cell.name) & (pl.col("stage") == "measure"))
    counts = rows.group_by("round").len().collect()
    return dict(counts.iter_rows())


def _visit(number: int, rows: pl.DataFrame, cut: bool, cell: Cell, limits: dict[Kind, float]) -> Visit:
    judged = rows[settling(rows.height) :]
    answers = judged.filter(pl.col("ok"))
    due, ended = rows["intended_start"].to_list(), _ended(rows)
    served, seconds = answered(due, ended, rows.height - judged.height)
    in_time = _in_time(answers, limits)
    latencies = {kind: answers[f"{kind}_judged"].drop_nulls().to_numpy() for kind in SECONDS}
    if cut:
        in_time = None if in_time is None else 0
        latencies = dict.fromkeys(latencies, np.full(cell.requests - settling(cell.requests), np.inf))
    good = rows.filter(pl.col("ok")).sort("start")
    service = (good["total_seconds"] - good["queue_seconds"]).to_numpy()
    return Visit(
        round=number,
        sent=rows.height,
        answers=good.height,
        rejected=int(rows["rejected"].sum()),
        cut=cut,
        served=served,
        served_seconds=seconds,
        in_time=in_time,
        kept_up_share=served_share(due, ended, settling(rows.height, KEEPING_UP_AFTER)),
        met_share=None if in_time is None else in_time / judged.height,
        latencies=latencies,
        queue_seconds=good["queue_seconds"].to_numpy(),
        service_seconds=service,
        replayed_seconds=None if good["merged"].any() else _replayed(good, service),
        effective_batch=_mean(good["effective_batch"]),
    )


def _replayed(good: pl.DataFrame, service: Values) -> Values:
    return np.array(replayed_waits(good["start"].to_list(), service.tolist()))


def _mean(values: pl.Series) -> float | None:
    return None if values.null_count() or values.is_empty() else float(values.to_numpy().mean())


def _ended(rows: pl.DataFrame) -> list[float | None]:
    """When each request was answered; None where it was not."""
    ended = (rows["start"] + rows["latency_seconds"]).to_list()
    return [end if ok else None for end, ok in zip(ended, rows["ok"].to_list(), strict=True)]


def _in_time(answers: pl.DataFrame, limits: dict[Kind, float]) -> int | None:
    """How many are within all `limits`; None without any, or where a latency is unknown."""
    if not limits or any(answers[f"{kind}_judged"].null_count() for kind in limits):
        return None
    within = pl.all_horizontal(pl.col(f"{kind}_judged") <= limit for kind, limit in limits.items())
    return answers.filter(within).height
