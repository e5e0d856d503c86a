"""Gates of rows that are in no folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadtests.run.gates import Gate
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun
from loadtests.run.service_gates import Scrapes
from loadtests.run.validation import CheckedRows


def validate(
    run: SweepRun,
    rows: Iterable[RequestRow],
    before: str | None,
    after: str | None,
    earlier: Sequence[Scrapes] = (),
) -> list[Gate]:
    """The gates of `run` and its `rows`, as `CheckedRows.gates`."""
    checked = CheckedRows()
    for row in rows:
        checked.add(row)
    return checked.gates(run, before, after, earlier)
