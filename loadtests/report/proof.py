"""Whether a selftest proves the split into dispatch and kernel on a sweep's machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadtests.run.run_file import SERIES_FILE, SweepRun
from service.statistics.boundedness import PROVED, UNPROVED, LeftOpen

SELFTEST_FILE = "selftest.json"


@dataclass(frozen=True, slots=True)
class Bound:
    """An error of the split: how the names of the `rows` begin that bound it, and what each `should` read."""

    rows: tuple[str, ...]
    should: float


BOUNDS = (
    Bound(("injected kernel time that arrives as kernel", "injected host time that arrives as host"), 1.0),
    Bound(("kernel share at 997 samples per second less that at none",), 0.0),
)
"""Of the classes, and of the sampler's rate: neither says anything of the other."""

Document = dict[str, Any]
"""The contents of a `selftest.json`."""


def find_selftest(results: Path, run: SweepRun) -> Document | None:
    """The newest selftest of the same commit, processor and device in the folders beside `results`.

    Of a start of a series, beside that. Only a complete one counts: every check, no uncommitted change,
    default model, dtype and modes. One that ran the sweep's kernels (`ran_alike`) goes before newer ones
    that did not. None: no such selftest, or the sweep itself had uncommitted changes, of which none can be.
    """
    if run.environment.get("dirty"):
        return None
    beside = results.parents[(results.parent / SERIES_FILE).is_file()]
    fitting = [found for found in _documents(beside) if _stands_for(found, run)]
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
    return alike and set(run.plan.modes) <= set(found.get("modes") or [])


def left_open(found: Mapping[str, Any] | None, run: SweepRun) -> LeftOpen:
    """What samples may get wrong in `run`, however many there are.

    PROVED of each of BOUNDS, or more where this machine's selftest does not exclude more. UNPROVED where
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


SPLIT_CHECKS = {
    "injected", "sampling-rate", "plain-kernels", "unclassified", "instructions", "served-samples",
}  # fmt: skip
"""The selftest's checks of the split: one that broke leaves a failed row of its name."""

SPLIT_ROWS = (
    *(start for bound in BOUNDS for start in bound.rows),
    "kernel time equal in the plain modes",
    "samples in code of no class",
    "instructions in kernels",
    "host instructions",
    "kernel share that a service answers with less that in process",
)
"""What the names of a selftest's rows about the split begin with."""

NOT_PROVED = "Not proved on this machine"


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether the split is proved, a sentence where it is not, and what a report says of the selftest.

    `proved` None: the device measures both parts, or neither, and there is nothing to prove.
    """

    proved: bool | None
    missing: str | None
    selftest: str


def proof(found: Document | None, run: SweepRun, estimated: bool) -> Proof:
    """What backs the split of `run`: a selftest of its machine and commit.

    What was sampled in the run's own engine gives the split and its interval, and so cannot prove it.
    """
    selftest = "not run on this machine and commit (launchbound selftest)"
    if found is not None:
        outcome = "FAILED" if found["outcome"] == "failed" else found["outcome"]
        selftest = f"{outcome}: {found['detail']}"
    if not estimated:
        return Proof(None, None, selftest)
    missing = _missing(found, run)
    return Proof(missing is None, missing and f"{NOT_PROVED}: {missing}.", selftest)


def _missing(found: Document | None, run: SweepRun) -> str | None:
    """What there is instead of a proof; None where a complete selftest proves the split.

    It has to be of the run's kernels and modes and to have the rows that bound the interval, and every row
    about the split that could be measured must have passed: an undecided one does not count.
    """
    if found is None:
        return "this run has no selftest of its machine and commit beside it (launchbound selftest makes one)"
    if not ran_alike(found, run):
        return (
            "its selftest is of another torch, model, dtype, thread count, layout of linear weights or modes"
        )
    rows = [row for row in found["rows"] if row["name"].startswith(SPLIT_ROWS) or row["name"] in SPLIT_CHECKS]
    measured = [row for row in rows if row["verdict"] != "not measurable here"]
    if not all(any(row["name"].startswith(bound.rows) for row in measured) for bound in BOUNDS):
        return "its selftest has no row that bounds one of the split's errors"
    passed = sum(row["verdict"] == "pass" for row in measured)
    if passed == len(measured):
        return None
    return f"of its selftest's {len(measured)} rows about the split {passed} passed"
