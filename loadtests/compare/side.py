"""One side of a comparison: a build, in one sweep or in several."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from loadtests.plan.cells import BASELINE, Cell
from loadtests.report.results import Results, read_results
from loadtests.run.run_file import RUN_FILE, RunError
from service.statistics.choice import Rounds, paired


@dataclass(frozen=True)
class Side:
    """The sweeps of one build, by their start."""

    path: Path
    sweeps: tuple[Results, ...]

    @property
    def first(self) -> Results:
        """The sweep that stands for the build's environment: all of a side are alike."""
        return self.sweeps[0]

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """The cells that can be compared, by name: closed loop, no control, measured in each of the sweeps.

        In an open loop each run's arrival rates follow its own capacity: such cells differ in load.
        """
        shared = set.intersection(*self._measured)
        return {name: cell for name, cell in self._comparable.items() if name in shared}

    @cached_property
    def partial(self) -> set[str]:
        """The names of cells of the same kind that some of its sweeps have measured and others have not."""
        return self._comparable.keys() & set.union(*self._measured) - self.cells.keys()

    @cached_property
    def _measured(self) -> list[set[str]]:
        return [set(sweep.rounds["cell"].to_list()) for sweep in self.sweeps]

    @cached_property
    def _comparable(self) -> dict[str, Cell]:
        planned = (cell for sweep in self.sweeps for cell in sweep.run.plan.cells)
        return {cell.name: cell for cell in planned if not cell.open_loop and not cell.control}

    def latencies(self, cell: Cell) -> list[Rounds]:
        """Per sweep the median latency of `cell` by round, in seconds."""
        return [sweep.medians(cell.name) for sweep in self.sweeps]

    def ratios(self, cell: Cell) -> list[list[float]] | None:
        """Per sweep and round the latency of `cell` over the baseline's.

        None for the baseline itself, and where a sweep has no round with both.
        """
        base = next((c for c in self.cells.values() if c.group == cell.group and c.mode == BASELINE), None)
        if base is None or base == cell:
            return None
        pairs = [paired(*both) for both in zip(self.latencies(cell), self.latencies(base), strict=True)]
        if not all(own for own, _ in pairs):
            return None
        return [[a / b for a, b in zip(own, other, strict=True)] for own, other in pairs]

    def mean_seconds(self, cell: Cell, column: str) -> float | None:
        """Mean over sweeps of a mean of `Results.cells`; None where a sweep has none."""
        values = [sweep.cells.filter(sweep.cells["cell"] == cell.name)[column][0] for sweep in self.sweeps]
        return None if None in values else sum(values) / len(values)


def read_side(path: Path) -> Side:
    """The sweep in `path`, or all sweeps in the folders of `path`. Raises RowsError where there is none."""
    if (path / RUN_FILE).exists():
        return Side(path, (read_results(path),))
    folders = sorted(found.parent for found in path.glob(f"*/{RUN_FILE}"))
    if not folders:
        raise RunError(
            f"{path} holds no sweep: name a folder that `launchbound sweep` wrote, or one that holds several"
        )
    sweeps = sorted(map(read_results, folders), key=lambda sweep: sweep.run.started)
    return Side(path, tuple(sweeps))


def swept_in_turn(before: Side, after: Side) -> bool:
    """Whether each sweep of one side was next to its namesake of the other, and none overlapped.

    By start: of the first two sweeps one is of either side, of the next two as well, and so on.
    """
    if len(before.sweeps) != len(after.sweeps):
        return False
    runs = [(sweep.run, side) for side in (before, after) for sweep in side.sweeps]
    runs.sort(key=lambda one: one[0].started)
    apart = all((first[0].ended or "") <= second[0].started for first, second in pairwise(runs))
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return apart and all(first[1] is not second[1] for first, second in pairs)
