"""What a results folder says about load, by the objectives of its plan or by other ones."""

from __future__ import annotations

from functools import cached_property

from loadtests.plan.slo import Slo
from loadtests.report.load.cells import LoadCell
from loadtests.report.load.knees import LoadGroup, load_groups
from loadtests.report.load.objectives import Criterion
from loadtests.report.load.visits import visits
from loadtests.report.results import Results


class LoadFindings:
    """The statistics of the open-loop cells of `results`, each computed on first use.

    They are judged by `slo`, else by the plan's objectives, else by whether answers keep up with arrivals.
    """

    def __init__(self, results: Results, slo: Slo | None = None) -> None:
        self.results = results
        self.given = slo is not None
        self.criterion = Criterion(slo or results.run.plan.slo)

    @cached_property
    def cells(self) -> list[LoadCell]:
        """The open-loop cells that have a whole visit, in the plan's order."""
        rates = self.results.run.client.rates
        opened = [
            cell
            for cell in self.results.run.plan.cells
            if cell.open_loop and not cell.control and cell.name in rates
        ]
        found = {cell: tuple(visits(self.results, cell, self.criterion)) for cell in opened}
        return [LoadCell(cell, rates[cell.name], own, self.criterion) for cell, own in found.items() if own]

    @cached_property
    def groups(self) -> list[LoadGroup]:
        """The knees, by batch size and conditions."""
        return load_groups(self.cells, self.criterion)

    @property
    def source(self) -> str:
        """Where the objectives come from, for a reader."""
        if self.criterion.slo is None:
            return "There is no objective: `--slo` of `sweep` or `report`, or `[slo]` of a plan, sets one."
        if not self.given:
            return "The objectives are those of the plan."
        own = self.results.run.plan.slo
        return "The objectives were given for this report; " + (
            "the plan has none." if own is None else f"the plan's are: {Criterion(own).meaning}"
        )
