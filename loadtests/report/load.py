"""Open-loop cells: what was offered, answered and in time, and the knee of every mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Literal

import numpy as np
import polars as pl

from loadtests.plan.cells import BASELINE, Arrivals, Cell, Slo
from loadtests.plan.prompts import PromptSet
from loadtests.report.formatting import listed
from loadtests.report.results import Results
from service.statistics.intervals import (
    KEEPING_UP_AFTER,
    Interval,
    answered,
    mean_interval,
    quantile_interval,
    rate_interval,
    served_share,
    settling,
)
from service.statistics.knee import (
    SERVED_SHARE,
    BoundedEstimate,
    RatePoint,
    kept_up_point,
    knee,
    knee_ratio,
    met_point,
    pollaczek_khinchine,
    replayed_waits,
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
        kinds = zip(SECONDS, self._limits, strict=True)
        return {kind: limit for kind, limit in kinds if limit and (kind != "tpot" or new_tokens > 1)}

    @property
    def _limits(self) -> tuple[float | None, float | None, float | None]:
        slo = self.slo
        return (slo.e2e_seconds, slo.ttft_seconds, slo.tpot_seconds) if slo else (None, None, None)

    @property
    def within(self) -> str:
        """The end of a sentence: 'within 100 ms, first token within 50 ms'."""
        if self.slo is None:
            return "before it saturates"
        texts = ("within {}", "the first token within {}", "at most {} per further token")
        limits = zip(texts, self._limits, strict=True)
        return listed([text.format(f"{1e3 * limit:.4g} ms") for text, limit in limits if limit is not None])

    @property
    def meaning(self) -> str:
        share = f"{100 * self.least_share:.4g} %"
        if self.slo is None:
            return (
                f"A rate counts as served where answers leave at {share} of the rate offered, or more. There "
                "is no objective: `--slo` of `sweep` or `report`, or `[slo]` of a plan, sets one."
            )
        return f"A rate counts as served where at least {share} of the requests are answered {self.within}."


Values = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Block:
    """One block of an open-loop cell. Its first requests, which fill the queue, are counted and not judged.

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
    replayed_seconds: list[float] | None
    effective_batch: float | None


def blocks(results: Results, cell: Cell, criterion: Criterion) -> Iterator[Block]:
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
            yield _block(int(number), grown, number in cut, cell, criterion.limits(cell.new_tokens))


def _block(number: int, rows: pl.DataFrame, cut: bool, cell: Cell, limits: dict[Kind, float]) -> Block:
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
    service = good["total_seconds"] - good["queue_seconds"]
    together = good["effective_batch"]
    known = not (together.is_empty() or together.null_count())
    return Block(
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
        service_seconds=service.to_numpy(),
        replayed_seconds=None
        if good["merged"].any()
        else replayed_waits(good["start"].to_list(), service.to_list()),
        effective_batch=float(together.to_numpy().mean()) if known else None,
    )


def _ended(rows: pl.DataFrame) -> list[float | None]:
    """When each request was answered; None where it was not."""
    return rows.select(pl.when("ok").then(pl.col("start") + pl.col("latency_seconds"))).to_series().to_list()


def _in_time(answers: pl.DataFrame, limits: dict[Kind, float]) -> int | None:
    """How many are within all `limits`; None without any, or where a latency is unknown."""
    if not limits or any(answers[f"{kind}_judged"].null_count() for kind in limits):
        return None
    within = pl.all_horizontal(pl.col(f"{kind}_judged") <= limit for kind, limit in limits.items())
    return answers.filter(within).height


QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class LoadCell:
    """One open-loop cell: its arrival rate per second, and its whole blocks, one per round."""

    cell: Cell
    rate: float
    blocks: tuple[Block, ...]
    criterion: Criterion

    @property
    def sent(self) -> int:
        return sum(block.sent for block in self.blocks)

    @property
    def rejected(self) -> int:
        """Requests that the service's bounded queue refused."""
        return sum(block.rejected for block in self.blocks)

    @property
    def failed(self) -> int:
        """Requests without an answer that were not refused."""
        return sum(block.sent - block.answers - block.rejected for block in self.blocks)

    @property
    def cut(self) -> int:
        """Blocks that ended early because their queue only grew."""
        return sum(block.cut for block in self.blocks)

    @cached_property
    def served_rate(self) -> Interval:
        """Answers per second, over all blocks."""
        return self._rate_of([block.served for block in self.blocks])

    @cached_property
    def goodput(self) -> Interval | None:
        """Requests in time per second, over all blocks, at least as uncertain as their share."""
        in_time = [block.in_time for block in self.blocks if block.in_time is not None]
        if self.attainment is None or not in_time:
            return None
        found, served = self._rate_of(in_time), self.served_rate.value
        low = min(found.low, found.value, self.attainment.low * served)
        high = max(found.high, self.attainment.high * served)
        return Interval(found.value, max(0.0, low), high, found.samples)

    def _rate_of(self, counts: list[int]) -> Interval:
        """Per second of the blocks' judged time; 0 where nothing was answered at all."""
        seconds = [block.served_seconds for block in self.blocks]
        return rate_interval(counts, seconds) if sum(seconds) > 0 else Interval(0.0, 0.0, 0.0, len(counts))

    @cached_property
    def attainment(self) -> Interval | None:
        """The share of requests in time, mean over rounds; None without an objective, or where not known."""
        shares = _all_known(block.met_share for block in self.blocks)
        if shares is None:
            return None
        point = met_point(self.rate, shares, self._judged)
        return Interval(point.share, point.low, point.high, len(shares))

    @cached_property
    def point(self) -> RatePoint | None:
        """What was served of its rate, as the knee takes it; None where a block cannot be judged."""
        keeping_up = self.criterion.slo is None
        shares = _all_known(
            0.0 if block.cut else block.kept_up_share if keeping_up else block.met_share
            for block in self.blocks
        )
        found = kept_up_point if keeping_up else met_point
        return None if shares is None else found(self.rate, shares, self._judged)

    @property
    def _judged(self) -> int:
        return self.cell.requests - settling(self.cell.requests)

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
        if any(not one.answers or np.isnan(one.queue_seconds).any() for one in self.blocks):
            return None
        return _mean(float(one.queue_seconds.mean()) for one in self.blocks)

    @cached_property
    def replayed_wait(self) -> Interval | None:
        """What that has to be, by the instants of sending and the requests' own time in the service alone.

        For any arrivals; it does not know the queue's clock. It takes all of that time as the engine's,
        although the front works on one request while the engine serves another, and so reads a little high
        under load. None where requests are merged.
        """
        if self.queue_wait is None:
            return None
        return _mean(fmean(one.replayed_seconds) if one.replayed_seconds else None for one in self.blocks)

    @cached_property
    def steady_wait(self) -> Interval | None:
        """Pollaczek and Khinchine's, after an infinite time: a block, which starts empty, waits less.

        None for other arrivals than Poisson's, merged or refused requests, or a round past saturation.
        """
        refused = any(one.cut or one.rejected for one in self.blocks)
        if self.replayed_wait is None or self.cell.arrivals != "poisson" or refused:
            return None
        return _mean(pollaczek_khinchine(self.rate, one.service_seconds.tolist()) for one in self.blocks)


def _all_known(values: Iterable[float | None]) -> list[float] | None:
    """None where one of them is."""
    found = list(values)
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None


def _mean(values: Iterable[float | None]) -> Interval | None:
    known = _all_known(values)
    return mean_interval(known) if known else None


Ladder = tuple[int, PromptSet, int, Arrivals]
"""Batch size, prompt set, new tokens and arrivals: what the rates of one knee have in common."""


def ladder_of(cell: Cell) -> Ladder:
    return (cell.batch_size, cell.prompt_set, cell.new_tokens, cell.arrivals)


@dataclass(frozen=True, slots=True)
class ModeKnee:
    """The knee of one mode, in arrivals per second, from the cells of its ladder of rates, ascending.

    `estimate` None: what decides was not measured, as the first token's time by an old service. `too_short`:
    how many requests a block should have where it has fewer, because its queue cannot grow to the limit.
    """

    mode: str
    cells: tuple[LoadCell, ...]
    estimate: BoundedEstimate | None
    too_short: int | None

    @property
    def rounds(self) -> int:
        """Rounds in which the rarest of its rates was sent whole."""
        return min(len(one.blocks) for one in self.cells)


@dataclass(frozen=True, slots=True)
class LoadGroup:
    """The knees of all modes under the same conditions, in the ladder's order."""

    ladder: Ladder
    knees: tuple[ModeKnee, ...]

    @property
    def reference(self) -> str:
        """The mode with which the others are compared."""
        modes = [one.mode for one in self.knees]
        return BASELINE if BASELINE in modes else modes[0]

    def ratio(self, mode: str) -> BoundedEstimate | None:
        """The knee of `mode` over the reference's; None for itself, or where one is not known."""
        estimates = {one.mode: one.estimate for one in self.knees}
        first, second = estimates.get(self.reference), estimates.get(mode)
        if first is None or second is None or mode == self.reference:
            return None
        return knee_ratio(first, second)


def _knee(mode: str, cells: Sequence[LoadCell], criterion: Criterion) -> ModeKnee:
    ordered = tuple(sorted(cells, key=lambda one: one.rate))
    points = [point for one in ordered if (point := one.point) is not None]
    found = knee(points, criterion.least_share) if len(points) == len(ordered) else None
    return ModeKnee(mode, ordered, found, _too_short(ordered, criterion))


def _too_short(cells: Sequence[LoadCell], criterion: Criterion) -> int | None:
    """A queue that starts empty takes about (limit × capacity)² arrivals to reach a limit."""
    limits = criterion.limits(cells[0].cell.new_tokens)
    waiting = [limits[kind] for kind in ("e2e", "ttft") if kind in limits]
    if not waiting or (capacity := _capacity(cells)) is None:
        return None
    needed = int(float(f"{(min(waiting) * capacity) ** 2:.1e}"))
    return needed if needed > min(one.cell.requests for one in cells) else None


def _capacity(cells: Sequence[LoadCell]) -> float | None:
    """Requests per second that are served at most: where they run one at a time, by their time in service;
    where some ran together, the highest rate that was seen.
    """
    service = [block.service_seconds.mean() for one in cells for block in one.blocks if block.answers]
    if not service:
        return None
    if any(one.effective_batch and one.effective_batch.value > one.cell.batch_size for one in cells):
        return max(one.served_rate.value for one in cells)
    return len(service) / float(sum(service))


class LoadFindings:
    """The statistics of the open-loop cells of `results`, each computed on first use.

    They are judged by `slo`, else by the plan's objectives, else by whether answers keep up with arrivals.
    """

    def __init__(self, results: Results, slo: Slo | None = None) -> None:
        self.results = results
        self.criterion = Criterion(slo or results.run.plan.slo)

    @cached_property
    def cells(self) -> list[LoadCell]:
        """The open-loop cells that have a whole block, in the plan's order."""
        rates = self.results.run.client.rates
        opened = [
            cell
            for cell in self.results.run.plan.cells
            if cell.open_loop and not cell.control and cell.name in rates
        ]
        found = {cell: tuple(blocks(self.results, cell, self.criterion)) for cell in opened}
        return [LoadCell(cell, rates[cell.name], own, self.criterion) for cell, own in found.items() if own]

    @cached_property
    def groups(self) -> list[LoadGroup]:
        groups: dict[Ladder, dict[str, list[LoadCell]]] = {}
        for one in self.cells:
            groups.setdefault(ladder_of(one.cell), {}).setdefault(one.cell.mode, []).append(one)
        return [
            LoadGroup(ladder, tuple(_knee(mode, own, self.criterion) for mode, own in modes.items()))
            for ladder, modes in sorted(groups.items())
        ]
