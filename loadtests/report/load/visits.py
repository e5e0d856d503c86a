"""The visits of open-loop cells: what was offered in each, what was answered, and what of it in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from loadtests.plan.cells import Cell
from loadtests.report.load.objectives import SECONDS, Criterion, Kind
from loadtests.report.results import Results
from service.statistics.queueing import replayed_waits
from service.statistics.visits import KEEPING_UP_AFTER, served_share, settling

Values = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Visit:
    """One visit of an open-loop cell. Its first requests, which fill the queue, are counted and not judged.

    `served_rate` are the answers per second and `goodput` those in time; `kept_up_share` is the rate of
    answers over that of arrivals, in the second half; `met_share` is the share of requests in time, rejected
    ones being late. None: not known, or no objective. Latencies are of the judged answers. `queue_seconds`
    and `service_seconds` are of all answers in their order, `replayed_seconds` the waits that follow from
    arrivals and service alone.
    """

    round: int
    sent: int
    answers: int
    rejected: int
    cut: bool
    served_rate: float
    kept_up_share: float
    met_share: float | None
    goodput: float | None
    latencies: dict[Kind, Values]
    queue_seconds: Values
    service_seconds: Values
    replayed_seconds: Values

    def share(self, criterion: Criterion) -> float | None:
        """What decides whether its rate was served; where the queue only grew nobody is, in the end."""
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
        last = own.filter(pl.col("part") == own["part"].max()) if ends_cut else own
        if (whole or ends_cut) and last.height > 1:
            yield _visit(int(number), last, ends_cut, criterion.limits(cell.new_tokens))


def _sent(results: Results, cell: Cell) -> dict[int, int]:
    """Requests by round, profiled ones too."""
    rows = results.rows.lazy().filter((pl.col("cell") == cell.name) & (pl.col("stage") == "measure"))
    counts = rows.group_by("round").len().collect()
    return dict(counts.iter_rows())


def _visit(number: int, rows: pl.DataFrame, cut: bool, limits: dict[Kind, float]) -> Visit:
    judged = rows[settling(rows.height) :]
    answered = judged.filter(pl.col("ok"))
    due, first = rows["intended_start"].to_list(), rows.height - judged.height
    served_rate = _served_share(rows, first) * judged.height / (due[-1] - due[first - 1])
    met = _met_share(judged, limits)
    good = rows.filter(pl.col("ok")).sort("start")
    service = (good["total_seconds"] - good["queue_seconds"]).to_numpy()
    return Visit(
        round=number,
        sent=rows.height,
        answers=good.height,
        rejected=int(rows["rejected"].sum()),
        cut=cut,
        served_rate=served_rate,
        kept_up_share=_served_share(rows, settling(rows.height, KEEPING_UP_AFTER)),
        met_share=met,
        # The served rate counts answers, the share counts requests.
        goodput=None if met is None else met * served_rate * judged.height / max(1, answered.height),
        latencies={kind: answered[f"{kind}_judged"].drop_nulls().to_numpy() for kind in SECONDS},
        queue_seconds=good["queue_seconds"].to_numpy(),
        service_seconds=service,
        replayed_seconds=np.array(replayed_waits(good["start"].to_list(), service.tolist())),
    )


def _served_share(rows: pl.DataFrame, left_out: int) -> float:
    ended = (rows["start"] + rows["latency_seconds"]).to_list()
    answered = rows["ok"].to_list()
    pairs = zip(ended, answered, strict=True)
    return served_share(
        rows["intended_start"].to_list(), [end if ok else None for end, ok in pairs], left_out
    )


def _met_share(judged: pl.DataFrame, limits: dict[Kind, float]) -> float | None:
    """The share of requests within all `limits`; None without any, or where a latency is unknown."""
    answered = judged.filter(pl.col("ok"))
    if not limits or any(answered[f"{kind}_judged"].null_count() for kind in limits):
        return None
    in_time = pl.all_horizontal(pl.col(f"{kind}_judged") <= limit for kind, limit in limits.items())
    return answered.filter(in_time).height / judged.height
