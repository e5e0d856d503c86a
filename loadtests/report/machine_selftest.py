"""The selftest that stands for a sweep's machine and commit: the newest complete one beside its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadtests.run.run_file import SweepRun
from service.statistics.boundedness import CLASSES, PROVED, RATE, UNPROVED, LeftOpen

SELFTEST_FILE = "selftest.json"


@dataclass(frozen=True, slots=True)
class Bound:
    """An error of the split: what the names of the `rows` begin with that bound it, what each `should` read,
    and how much of it every interval `allows`.
    """

    rows: tuple[str, ...]
    should: float
    allows: float


BOUNDS = (
    Bound(
        ("injected kernel time that arrives as kernel", "injected host time that arrives as host"),
        1.0,
        CLASSES,
    ),
    Bound(("kernel share at 997 samples per second less that at none",), 0.0, RATE),
)
"""Of the classes, and of the sampler's rate: neither says anything of the other."""

Document = dict[str, Any]
"""The contents of a `selftest.json`."""


def find_selftest(results: Path, run: SweepRun) -> Document | None:
    """The newest selftest of the same commit, processor and device in the folders beside `results`.

    Only a complete one counts: every check, no uncommitted change, default model, dtype and modes. One that
    ran the sweep's kernels (`ran_alike`) goes before newer ones that did not. None: no such selftest, or the
    sweep itself had uncommitted changes, of which none can be.
    """
    if run.environment.get("dirty"):
        return None
    fitting = [found for found in _documents(results.parent) if _stands_for(found, run)]
    return max(fitting, key=lambda one: (ran_alike(one, run), str(one.get("created", ""))), default=None)


def _documents(folder: Path) -> Iterator[Document]:
    for path in folder.glob(f"*/{SELFTEST_FILE}"):
        document = msgspec.json.decode(path.read_bytes())
        if isinstance(document, dict):
            yield document


def _stands_for(found: Mapping[str, Any], run: SweepRun) -> bool:
    """Documents of the first format do not say whether they are complete, and do not count."""
    here = run.environment
    device = run.engine.get("device_name")
    return (
        found.get("complete") is True
        and found.get("commit") is not None
        and all(found.get(key) == here.get(key) for key in ("commit", "cpu", "cpu_features"))
        and (device is None or found.get("device") == device)
    )


def ran_alike(found: Mapping[str, Any], run: SweepRun) -> bool:
    """Whether the selftest ran the sweep's modes and kernels.

    The same torch, whose functions have the same names; model, dtype, threads, linear weights' layout.
    """
    engine = run.engine
    here = {name: engine.get(name) for name in ("torch", "model", "dtype", "threads")}
    here["linears"] = (engine.get("linears") or {}).get("layout")
    alike = all(found.get(key) == value for key, value in here.items())
    return alike and set(run.plan.ladder_modes) <= set(found.get("modes") or [])


def left_open(found: Mapping[str, Any] | None, run: SweepRun) -> LeftOpen:
    """What samples may get wrong in `run`, however many there are.

    What each of BOUNDS allows, or more where this machine's selftest does not exclude more. UNPROVED where
    there is no selftest; never less where it is of other kernels, or lacks the rows that bound an error.
    """
    if found is None:
        return UNPROVED
    least = PROVED if ran_alike(found, run) else UNPROVED
    of_each = zip(BOUNDS, least, UNPROVED, strict=True)
    return LeftOpen(*(max(known, _error(found["rows"], bound, none)) for bound, known, none in of_each))


def _error(rows: list[Mapping[str, Any]], bound: Bound, without_rows: float) -> float:
    """The most that the intervals of the rows leave open; an end that is not known leaves open anything."""
    ends = [row.get(end) for row in rows if row["name"].startswith(bound.rows) for end in ("low", "high")]
    return max((1.0 if end is None else abs(end - bound.should) for end in ends), default=without_rows)


def selftest_line(found: Mapping[str, Any] | None) -> str:
    """What a report says of it: the outcome, and by name every row that did not pass."""
    if found is None:
        return "not run on this machine and commit (launchbound selftest)"
    words = {"passed": "passed", "failed": "FAILED", "undecided": "undecided"}
    return f"{words[found['outcome']]}: {found['detail']}"
