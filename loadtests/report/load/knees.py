"""The knee of every mode: the highest arrival rate that counts as served, and how knees compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.plan.arrivals import Arrivals
from loadtests.plan.prompts import PromptSet
from loadtests.report.load.cells import LoadCell
from loadtests.report.load.objectives import Criterion
from service.statistics.knee import BoundedEstimate, knee, knee_ratio

Ladder = tuple[int, PromptSet, int, Arrivals]
"""Batch size, prompt set, new tokens and arrivals: what the rates of one knee have in common."""


@dataclass(frozen=True, slots=True)
class ModeKnee:
    """The knee of one mode, in arrivals per second, from the cells of its ladder of rates, ascending.

    `estimate` None: what decides was not measured, as the first token's time by an old service. `too_short`:
    how many requests a visit should have where it has fewer, because its queue cannot grow to the limit.
    """

    mode: str
    cells: tuple[LoadCell, ...]
    estimate: BoundedEstimate | None
    too_short: int | None

    @property
    def rounds(self) -> int:
        """Rounds in which the least visited of its rates was visited whole."""
        return min(len(one.visits) for one in self.cells)


@dataclass(frozen=True, slots=True)
class LoadGroup:
    """The knees of all modes under the same conditions, in the ladder's order."""

    ladder: Ladder
    knees: tuple[ModeKnee, ...]

    def ratio(self, reference: str, mode: str) -> BoundedEstimate | None:
        """The knee of `mode` over that of `reference`; None for itself, or where one is not known."""
        estimates = {one.mode: one.estimate for one in self.knees}
        first, second = estimates.get(reference), estimates.get(mode)
        if first is None or second is None or reference == mode:
            return None
        return knee_ratio(first, second)


def load_groups(cells: Sequence[LoadCell], criterion: Criterion) -> list[LoadGroup]:
    """All groups, by batch size and conditions."""
    groups: dict[Ladder, dict[str, list[LoadCell]]] = {}
    for one in cells:
        cell = one.cell
        ladder = (cell.batch_size, cell.prompt_set, cell.new_tokens, cell.arrivals)
        groups.setdefault(ladder, {}).setdefault(cell.mode, []).append(one)
    return [
        LoadGroup(ladder, tuple(_knee(mode, own, criterion) for mode, own in modes.items()))
        for ladder, modes in sorted(groups.items())
    ]


def _knee(mode: str, cells: Sequence[LoadCell], criterion: Criterion) -> ModeKnee:
    ordered = tuple(sorted(cells, key=lambda one: one.rate))
    points = [point for one in ordered if (point := one.point) is not None]
    known = len(points) == len(ordered)
    return ModeKnee(
        mode,
        ordered,
        knee(points, criterion.least_share) if known else None,
        _too_short(ordered, criterion),
    )


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
    service = [visit.service_seconds.mean() for one in cells for visit in one.visits if visit.answers]
    if not service:
        return None
    if any(one.effective_batch and one.effective_batch.value > one.cell.batch_size for one in cells):
        return max(one.served_rate.value for one in cells)
    return len(service) / float(sum(service))
