"""A check is `measure`, which runs its arms, and `judge`, which makes rows of the samples and is pure."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from service.measure.isolation import OffCpuTime
from service.measure.rounds import Log
from service.selftest.results import CheckResult, broken, not_measurable

Subject = TypeVar("Subject")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

MOST_OFF_CPU = 0.02
"""Alone on its core, a check loses well under one percent, to the kernel's own ticks and threads."""


class NotMeasurableError(Exception):
    """A check that cannot measure on this machine; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Check(Generic[Subject, Key, Value]):
    """One check. `measure` returns each arm's samples in the order of the rounds; `judge` makes rows of them.

    An arm that could not be measured is left out, and may be there in another run. `rows` are name and bound
    of the rows that a machine gets where `measure` raises NotMeasurableError.
    """

    measure: Callable[[Subject, Log], dict[Key, list[Value]]]
    judge: Callable[[dict[Key, list[Value]]], list[CheckResult]]
    rows: tuple[tuple[str, str], ...] = ()


AnyCheck = Check[Any, Any, Any]


@dataclass(slots=True)
class _Runs:
    """The runs of one check so far, each with the share of time that its core ran something else."""

    check: AnyCheck
    found: list[tuple[dict[Any, list[Any]], float]] = field(default_factory=list)

    def add(self, subject: object, log: Log, off_cpu: OffCpuTime | None) -> None:
        measured = self.check.measure(subject, log)
        self.found.append((measured, off_cpu.take_share() if off_cpu else 0.0))

    def rows(self) -> list[CheckResult]:
        """From the samples of the runs on a quiet core; from all where none was, failures then undecided."""
        quiet = [run for run in self.found if run[1] <= MOST_OFF_CPU]
        used = quiet or self.found
        rows = self.check.judge(_combined([measured for measured, _ in used]))
        rows = [msgspec.structs.replace(row, runs=len(used)) for row in rows]
        return rows if quiet else undecided_where_failed(rows, max(share for _, share in used))


def run_check(
    name: str, check: AnyCheck, subject: object, log: Log, off_cpu: OffCpuTime | None = None
) -> list[CheckResult]:
    """The rows of `check`; undecided ones are judged again over the samples of two runs together.

    An exception is a failed row. With `off_cpu`, a run whose core was taken away is left out where another
    was not, and decides no failure where none was.
    """
    runs = _Runs(check)
    try:
        runs.add(subject, log, off_cpu)
        first = runs.rows()
        if all(row.verdict != "undecided" for row in first):
            return first
        runs.add(subject, log, off_cpu)
        both = {row.name: row for row in runs.rows()}
    except NotMeasurableError as reason:
        return [not_measurable(row, bound, str(reason)) for row, bound in check.rows]
    except Exception as error:  # noqa: BLE001 - a check that breaks is a failed row, and the others still run
        traceback.print_exc()
        return [broken(name, f"broke: {type(error).__name__}: {error}"[:300])]
    return [both.get(row.name, row) if row.verdict == "undecided" else row for row in first]


def _combined(runs: list[dict[Any, list[Any]]]) -> dict[Any, list[Any]]:
    """The samples of `runs` per arm, one run's rounds after the other's; none of a run without that arm."""
    keys = dict.fromkeys(key for run in runs for key in run)
    return {key: [sample for run in runs for sample in run.get(key, [])] for key in keys}


def undecided_where_failed(rows: list[CheckResult], off_cpu_share: float) -> list[CheckResult]:
    """`rows` of a disturbed core: failures with an interval become undecided. Noise helps no row to pass."""
    return [_undecided(row, off_cpu_share) for row in rows]


def _undecided(row: CheckResult, off_cpu_share: float) -> CheckResult:
    if row.verdict != "fail" or row.low == row.high:
        return row
    note = f"other processes took {off_cpu_share:.0%} of the core meanwhile; {row.note}".rstrip("; ")
    return msgspec.structs.replace(row, verdict="undecided", note=note)
