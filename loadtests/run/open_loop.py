"""What `run.json` says of open-loop cells besides their rates: searches, and visits that were cut."""

from __future__ import annotations

import msgspec

from loadtests.plan.arrivals import Arrivals
from loadtests.plan.cells import Cell
from loadtests.plan.prompts import PromptSet


class CutVisit(msgspec.Struct, frozen=True, kw_only=True):
    """An open-loop visit that ended before its last request, because of `reason`.

    The requests with an index below `sent` were sent; the plan does not owe the others.
    """

    round: int
    cell: str
    sent: int
    reason: str


class SearchProbe(msgspec.Struct, frozen=True, kw_only=True):
    """A visit of a search: its rate, the requests that were sent, and the share of them that met the SLO.

    `cut`: the queue only grew, so that not all were sent, and the SLO was missed whatever the share is.
    """

    rate: float
    requests: int
    met_share: float
    cut: bool


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The search for the highest rate, in requests per second, at which a mode meets the plan's SLO.

    `rate` None: it was missed at the lowest rate too, and the plan owes no cell at a share of it.
    """

    mode: str
    batch_size: int
    prompt_set: PromptSet = "short"
    new_tokens: int
    arrivals: Arrivals = "poisson"
    probes: list[SearchProbe]
    rate: float | None

    @property
    def work(self) -> str:
        """What was asked of the mode, as in the names of cells."""
        name = f"{self.mode} b={self.batch_size} {self.prompt_set} n={self.new_tokens}"
        return name + (" constant" if self.arrivals == "constant" else "")

    @property
    def text(self) -> str:
        """What it found, as one line."""
        what = self.work
        probes = f"{len(self.probes)} probes"
        if self.rate is None:
            lowest = min(probe.rate for probe in self.probes)
            return f"{what}: the SLO is missed even at {lowest:.3g}/s ({probes}), no cell of it is measured"
        return f"{what}: meets the SLO up to {self.rate:.4g}/s, by {probes}"

    def of(self, cell: Cell) -> bool:
        """Whether the load of `cell` is a share of what this search found."""
        mine = (self.mode, self.batch_size, self.prompt_set, self.new_tokens, self.arrivals)
        work = (cell.mode, cell.batch_size, cell.prompt_set, cell.new_tokens, cell.arrivals)
        return cell.share_of == "search" and work == mine
