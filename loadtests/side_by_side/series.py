"""The page over a series: the runs that measured something side by side, and what the others said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtests.report.results import Results, read_results
from loadtests.run.rows import RowsError
from loadtests.run.run_file import RUN_FILE
from loadtests.run.series_file import SeriesRun, read_series
from loadtests.side_by_side.entry import entries_of
from loadtests.side_by_side.files import write_picture


def make_series_picture(folder: Path) -> dict[str, Any]:
    """Write the page, Markdown and JSON of the series in `folder` into it; returns what `runs.json` holds.

    Raises RowsError where no run of it has measured anything, with what they said.
    """
    results = list[Results]()
    absent = dict[str, str]()
    for run in read_series(folder).runs:
        try:
            results.append(read_results(folder / run.dtype))
        except RowsError as error:
            absent[run.dtype] = _why(folder, run, error)
    if not results:
        told = "; ".join(f"{dtype}: {why}" for dtype, why in absent.items())
        raise RowsError(f"no run of {folder} has measured anything ({told})")
    return write_picture(entries_of(results), folder, absent)


def _why(folder: Path, run: SeriesRun, error: RowsError) -> str:
    """Why a run has no results."""
    if run.state == "not begun":
        return f"not begun; go on with `launchbound sweep --resume {folder}`"
    if run.said is not None:
        return run.said
    if not (folder / run.dtype / RUN_FILE).exists():
        return f"ended early, before it measured; go on with `launchbound sweep --resume {folder}`"
    return str(error)
