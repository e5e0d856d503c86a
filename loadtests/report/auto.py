"""What `auto` ran in a sweep, and whether it was as fast as the best mode of each batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from loadtests.report.findings import Findings
from loadtests.report.formatting import UNKNOWN
from loadtests.report.summaries import Summary, Verdict
from loadtests.run.run_file import SweepRun
from service.statistics.choice import Comparison, compare

ADVISED_BY = {"live": "requests served before the sweep", "default": "nobody"}
"""By the source that the service names; a sweep has a name of its own."""


@dataclass(frozen=True, slots=True)
class AutoRun:
    """`auto` in one group of cells. `requests` that count, by the mode that ran, most first.

    `comparison` is of `own` against `best`, the fastest mode of the group; None: no round has both.
    """

    own: Summary
    best: Summary
    requests: dict[str, int]
    comparison: Comparison | None
    advised_by: str

    @property
    def shares(self) -> str:
        """'compiled 75 %, inference_mode 25 %'."""
        total = sum(self.requests.values())
        return ", ".join(f"{mode} {100 * count / total:.3g} %" for mode, count in self.requests.items())


def auto_runs(findings: Findings) -> list[AutoRun]:
    """One for each group that has `auto`, in the order of the verdicts."""
    found = (_auto_run(verdict, findings) for verdict in findings.verdicts)
    return [one for one in found if one is not None]


def auto_numbers(verdict: Verdict, findings: Findings) -> dict[str, Any] | None:
    """The same for programs; None without `auto`."""
    found = _auto_run(verdict, findings)
    if found is None:
        return None
    ratio = found.comparison.speedup if found.comparison else None
    return {
        "requests": found.requests,
        "best": found.best.cell.mode,
        "speedup": None if ratio is None else [ratio.value, ratio.low, ratio.high],
        "word": found.comparison.word if found.comparison else None,
    }


def _auto_run(verdict: Verdict, findings: Findings) -> AutoRun | None:
    own = verdict.auto
    if own is None:
        return None
    fastest = min(verdict.candidates, key=lambda one: one.latency.value)
    best = verdict.of(verdict.choice.fastest) if verdict.choice else fastest
    medians = findings.results.medians(best.cell.name), findings.results.medians(own.cell.name)
    shared = medians[0].keys() & medians[1].keys()
    return AutoRun(
        own=own,
        best=best,
        requests=_requests(own, findings),
        comparison=compare(*medians, findings.confidence) if shared else None,
        advised_by=_advised_by(findings.results.run, own),
    )


def _requests(own: Summary, findings: Findings) -> dict[str, int]:
    counted = (
        findings.results.measured.filter(pl.col("cell") == own.cell.name)
        .group_by(pl.col("picked_mode").cast(pl.String))
        .len()
        .sort("len", "picked_mode", descending=[True, False])
        .collect()
    )
    return dict(counted.iter_rows())


def _advised_by(run: SweepRun, own: Summary) -> str:
    """Who advised at the start, on the smallest bucket that the batch fits in."""
    auto = run.auto or {"batches": []}
    fitting = [one for one in auto["batches"] if one["batch_bucket"] >= own.cell.batch_size]
    source = min(fitting, key=lambda one: int(one["batch_bucket"]))["source"] if fitting else None
    return str(auto["sweep"]) if source == "sweep" else ADVISED_BY.get(str(source), UNKNOWN)
