"""Open-loop cells: what was offered and answered, and the knee of every mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl

from loadtests.plan.cells import Arrivals, Cell, PromptSet
from loadtests.report.results import Results
from service.statistics.intervals import (
    KEEPING_UP_AFTER,
    SERVED_SHARE,
    BoundedEstimate,
    Interval,
    RatePoint,
    answered,
    knee,
    mean_interval,
    quantile_interval,
    rate_interval,
    served_share,
    settling,
)

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


Values = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Block:
    """One block of an open-loop cell. Its first requests, which fill the queue, are counted and not judged.

    `served` answers came in `served_seconds`; `kept_up_share` is the rate of answers over that of arrivals,
    in the second half. Latencies are of the judged answers; where the queue only grew they are infinite: what
    was seen of them says when it was cut. `queue_seconds` and `effective_batch`, the sequences per step, are
    means over all answers; None where a service does not say it.
    """

    sent: int
    rejected: int
    cut: bool
    served: int
    served_seconds: float
    kept_up_share: float
    latencies: dict[Kind, Values]
    queue_seconds: float | None
    effective_batch: float | None


def blocks(results: Results, cell: Cell) -> Iterator[Block]:
    """The whole blocks of `cell`, by round.

    One that the end of a sweep interrupted, or that a resumed sweep sent in two parts, is left out: its queue
    was empty twice, or its end is missing.
    """
    measured = results.rows.lazy().filter((pl.col("cell") == cell.name) & (pl.col("stage") == "measure"))
    sent = dict(measured.group_by("round").len().collect().iter_rows())
    judged = {f"{kind}_judged": seconds for kind, seconds in SECONDS.items()}
    rows = measured.filter(~pl.col("profiled")).with_columns(**judged).sort("intended_start").collect()
    cut = {one.round for one in results.run.cut_visits if one.cell == cell.name}
    for (number,), own in rows.group_by("round", maintain_order=True):
        whole = sent[number] >= cell.requests and own["part"].n_unique() == 1
        # Of one that was cut and whose last answers a resumed part sent again, that in which the queue grew.
        grown = own.filter(pl.col("part") == pl.col("part").mode().min()) if number in cut else own
        if (whole or number in cut) and grown.height > 1:
            yield _block(grown, number in cut, cell)


def _block(rows: pl.DataFrame, cut: bool, cell: Cell) -> Block:
    judged = rows[settling(rows.height) :].filter(pl.col("ok"))
    due, ended = rows["intended_start"].to_list(), _ended(rows)
    served, seconds = answered(due, ended, settling(rows.height))
    latencies = {kind: judged[f"{kind}_judged"].drop_nulls().to_numpy() for kind in SECONDS}
    if cut:
        latencies = dict.fromkeys(latencies, np.full(cell.requests - settling(cell.requests), np.inf))
    good = rows.filter(pl.col("ok"))
    return Block(
        sent=rows.height,
        rejected=int(rows["rejected"].sum()),
        cut=cut,
        served=served,
        served_seconds=seconds,
        kept_up_share=served_share(due, ended, settling(rows.height, KEEPING_UP_AFTER)),
        latencies=latencies,
        queue_seconds=_known_mean(good["queue_seconds"]),
        effective_batch=_known_mean(good["effective_batch"]),
    )


def _known_mean(values: pl.Series) -> float | None:
    """None without a value, or where one is not known."""
    return None if values.is_empty() or values.null_count() else float(values.to_numpy().mean())


def _ended(rows: pl.DataFrame) -> list[float | None]:
    """When each request was answered; None where it was not."""
    return rows.select(pl.when("ok").then(pl.col("start") + pl.col("latency_seconds"))).to_series().to_list()


QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class LoadCell:
    """One open-loop cell: its arrival rate per second, and its whole blocks, one per round."""

    cell: Cell
    rate: float
    blocks: tuple[Block, ...]

    @property
    def sent(self) -> int:
        return sum(block.sent for block in self.blocks)

    @property
    def rejected(self) -> int:
        """Requests that the service's bounded queue refused."""
        return sum(block.rejected for block in self.blocks)

    @property
    def cut(self) -> int:
        """Blocks that ended early because their queue only grew."""
        return sum(block.cut for block in self.blocks)

    @cached_property
    def served_rate(self) -> Interval:
        """Answers per second, over all blocks; 0 where nothing was answered at all."""
        seconds, counts = (
            [getattr(one, name) for one in self.blocks] for name in ("served_seconds", "served")
        )
        return rate_interval(counts, seconds) if sum(seconds) > 0 else Interval(0.0, 0.0, 0.0, len(counts))

    @cached_property
    def point(self) -> RatePoint:
        """What was served of its rate, as the knee takes it; nothing of a block that was cut."""
        shares = [0.0 if block.cut else block.kept_up_share for block in self.blocks]
        judged = self.cell.requests - settling(self.cell.requests)
        found = mean_interval(shares)
        return RatePoint(self.rate, found.value, found.low, found.high, judged * len(shares))

    @cached_property
    def quantiles(self) -> dict[Kind, dict[float, Interval | None]]:
        """The QUANTILES of the judged answers' latencies; None where there are too few of them."""
        by_kind = {kind: [block.latencies[kind] for block in self.blocks] for kind in SECONDS}
        return {
            kind: {share: quantile_interval(values, share) for share in QUANTILES}
            for kind, values in by_kind.items()
        }

    @cached_property
    def effective_batch(self) -> Interval | None:
        """Sequences per step that a request ran with, mean over rounds; None where that is not known."""
        return _mean(block.effective_batch for block in self.blocks)

    @cached_property
    def queue_wait(self) -> Interval | None:
        """Seconds in the queue, mean over rounds; None where a block has no answer or no queue time."""
        return _mean(block.queue_seconds for block in self.blocks)


def _mean(values: Iterable[float | None]) -> Interval | None:
    """None where one of them is."""
    known = list(values)
    return None if None in known else mean_interval([value for value in known if value is not None])


Ladder = tuple[int, PromptSet | None, int | None, Arrivals]
"""Batch size, prompt set, new tokens and arrivals: what the rates of one knee have in common."""


def ladder_of(cell: Cell) -> Ladder:
    return (cell.batch_size, cell.prompt_set, cell.new_tokens, cell.arrivals)


@dataclass(frozen=True, slots=True)
class ModeKnee:
    """The knee of one mode, in arrivals per second, from the cells of its ladder of rates, ascending."""

    mode: str
    cells: tuple[LoadCell, ...]
    estimate: BoundedEstimate

    @property
    def rounds(self) -> int:
        """Rounds in which the rarest of its rates was sent whole."""
        return min(len(one.blocks) for one in self.cells)


def _knee(mode: str, cells: Sequence[LoadCell]) -> ModeKnee:
    ordered = tuple(sorted(cells, key=lambda one: one.rate))
    return ModeKnee(mode, ordered, knee([one.point for one in ordered], SERVED_SHARE))


class LoadFindings:
    """The statistics of the open-loop cells of `results`, each computed on first use."""

    def __init__(self, results: Results) -> None:
        self.results = results

    @cached_property
    def cells(self) -> list[LoadCell]:
        """The open-loop cells that have a whole block, in the plan's order."""
        rates = self.results.run.client.rates
        opened = [
            cell
            for cell in self.results.run.plan.cells
            if cell.open_loop and not cell.control and cell.name in rates
        ]
        found = {cell: tuple(blocks(self.results, cell)) for cell in opened}
        return [LoadCell(cell, rates[cell.name], own) for cell, own in found.items() if own]

    @cached_property
    def knees(self) -> dict[Ladder, list[ModeKnee]]:
        """By the conditions of a ladder the knees of all modes, in the ladder's order."""
        ladders: dict[Ladder, dict[str, list[LoadCell]]] = {}
        for one in self.cells:
            ladders.setdefault(ladder_of(one.cell), {}).setdefault(one.cell.mode, []).append(one)
        return {key: [_knee(*own) for own in modes.items()] for key, modes in sorted(ladders.items())}
