"""What the rows of a comparison say: per batch size the standings, and what leaving PyTorch would buy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from loadtests.peers.results import CallRow, Contestant, PeersRun, ServiceRow
from service.statistics.choice import Rounds, by_speed, paired
from service.statistics.intervals import Interval, median_interval, paired_ratio


@dataclass(frozen=True, slots=True)
class Standing:
    """One contestant at one batch size.

    `seconds` is the median over rounds of their medians, with its interval; `ratio` its time over that of the
    best runtime outside PyTorch, paired within rounds. None where tokens differ (`difference`): what computes
    something else is not compared. `latency` and `steps` are a mode's HTTP request and its steps alone.
    """

    contestant: Contestant
    seconds: Interval
    ratio: Interval | None
    difference: str | None
    steps: float | None
    latency: float | None


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """The standings at one batch size, the fastest first.

    `leaving` is the time of the fastest mode over that of the fastest runtime outside PyTorch: above 1,
    leaving buys that much. None where one of the two is missing.
    """

    batch: int
    standings: tuple[Standing, ...]
    best_mode: str | None
    best_outside: str | None
    leaving: Interval | None


@dataclass(frozen=True, slots=True)
class ServiceStanding:
    """What one server adds, in seconds: per round the median of latency less model call; median over rounds.

    `outside_call`, of launchbound, leaves out what its engine does between steps as well.
    """

    contestant: Contestant
    added: Interval
    latency: Interval
    outside_call: Interval | None


def summaries(run: PeersRun) -> list[BatchSummary]:
    """One per batch size that has rows."""
    batches = sorted({row.batch for row in run.rows})
    return [_summary(run, [row for row in run.rows if row.batch == batch]) for batch in batches]


def _summary(run: PeersRun, rows: Sequence[CallRow]) -> BatchSummary:
    known = {one.name: one for one in run.contestants if one.kind != "server"}
    by_name: dict[str, list[CallRow]] = {}
    for row in rows:
        by_name.setdefault(row.contestant, []).append(row)
    rounds = {name: _rounds(own) for name, own in by_name.items()}
    differing = {
        name: next(row.difference for row in own if row.difference is not None)
        for name, own in by_name.items()
        if any(row.difference is not None for row in own)
    }
    fair = {name: own for name, own in rounds.items() if name not in differing}
    modes = by_speed({name: own for name, own in fair.items() if known[name].kind == "mode"})
    outside = by_speed({name: own for name, own in fair.items() if known[name].outside_pytorch})
    best_mode, best_outside = (names[0] if names else None for names in (modes, outside))
    standings = tuple(
        Standing(
            contestant=known[name],
            seconds=median_interval(list(rounds[name].values())),
            ratio=_ratio(fair, name, best_outside),
            difference=differing.get(name),
            steps=_typical([row.steps_seconds for row in by_name[name]]),
            latency=_typical([row.latency_seconds for row in by_name[name]]),
        )
        for name in by_speed(rounds)
    )
    return BatchSummary(
        rows[0].batch, standings, best_mode, best_outside, _ratio(fair, best_mode, best_outside)
    )


def _rounds(rows: Sequence[CallRow]) -> Rounds:
    return {row.round: median(row.seconds) for row in rows}


def _ratio(fair: dict[str, Rounds], name: str | None, other: str | None) -> Interval | None:
    """The time of `name` over that of `other`; None where one is missing or they share no round."""
    if name not in fair or other not in fair or name is None or other is None:
        return None
    own, others = paired(fair[name], fair[other])
    return paired_ratio(own, others) if own else None


def _typical(values: Sequence[list[float] | None]) -> float | None:
    known = [median(value) for value in values if value is not None]
    return median(known) if known else None


def service_standings(run: PeersRun) -> list[ServiceStanding]:
    """The servers, the one that adds least first."""
    known = {one.name: one for one in run.contestants if one.kind == "server"}
    by_name: dict[str, list[ServiceRow]] = {}
    for row in run.service_rows:
        by_name.setdefault(row.contestant, []).append(row)
    found = [
        ServiceStanding(
            contestant=known[name],
            added=median_interval([added(row) for row in rows]),
            latency=median_interval([median(row.latency_seconds) for row in rows]),
            outside_call=_outside_call(rows),
        )
        for name, rows in by_name.items()
    ]
    return sorted(found, key=lambda standing: standing.added.value)


def added(row: ServiceRow) -> float:
    """The median over a visit's requests of latency less model call, in seconds."""
    model = row.model_seconds or [0.0] * len(row.latency_seconds)
    return median(whole - inside for whole, inside in zip(row.latency_seconds, model, strict=True))


def _outside_call(rows: Sequence[ServiceRow]) -> Interval | None:
    values = [
        median(whole - inside for whole, inside in zip(row.latency_seconds, row.call_seconds, strict=True))
        for row in rows
        if row.call_seconds is not None
    ]
    return median_interval(values) if values else None


def added_ratio(run: PeersRun, name: str, other: str) -> Interval | None:
    """What `name` adds over what `other` adds, paired within rounds.

    None without a shared round, and where a round's calls took longer than its requests: then noise is
    larger than what is added, and there is no ratio.
    """
    rounds = [
        {row.round: added(row) for row in run.service_rows if row.contestant == one} for one in (name, other)
    ]
    own, others = paired(*rounds)
    return paired_ratio(own, others) if own and min(*own, *others) > 0 else None
