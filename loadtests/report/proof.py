"""Whether the split into dispatch and kernel is proved on this machine, and what it rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadtests.report.formatting import significant
from loadtests.report.machine_selftest import BOUNDS, ran_alike, selftest_line
from loadtests.report.phases import PhaseMeans
from loadtests.report.surroundings import kernels_of
from loadtests.report.verdict import Findings
from loadtests.report.wording import short_name
from service.statistics.boundedness import PROVED, counting_error

SPLIT_CHECKS = {
    "injected",
    "sampling-rate",
    "plain-kernels",
    "unclassified",
    "instructions",
    "served-samples",
}
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

OPEN = {"fail": "failed", "undecided": "undecided"}


@dataclass(frozen=True, slots=True)
class Proof:
    """`proved` None: the device measures both parts, or neither, and there is nothing to prove."""

    proved: bool | None
    sentences: list[str]
    selftest: str


def proof(findings: Findings) -> Proof:
    """What backs the split of this run: a selftest of its machine and commit.

    What was sampled in the run's own engine gives the split and its interval, and so cannot prove it.
    """
    found = findings.selftest
    told = selftest_line(found)
    if not findings.estimated:
        return Proof(None, [], told)
    backed = found is not None and backs(found, findings)
    sentences = [] if backed else [f"{NOT_PROVED}: {_missing(found, findings)}."]
    return Proof(backed, [*sentences, *_rests_on(findings)], told)


def split_rows(selftest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows about the split that could be measured."""
    rows = [
        row for row in selftest["rows"] if row["name"] in SPLIT_CHECKS or row["name"].startswith(SPLIT_ROWS)
    ]
    return [row for row in rows if row["verdict"] != "not measurable here"]


def backs(selftest: Mapping[str, Any], findings: Findings) -> bool:
    """Whether a complete selftest proves this run's split.

    One with the run's dtype, threads, layout and modes, which has the rows that bound the interval, and in
    which every row about the split that could be measured passed: an undecided one does not count.
    """
    rows = split_rows(selftest)
    bounded = all(any(row["name"].startswith(bound.rows) for row in rows) for bound in BOUNDS)
    passed = {row["verdict"] for row in rows} == {"pass"}
    return ran_alike(selftest, findings.results.run) and bounded and passed


def _missing(found: Mapping[str, Any] | None, findings: Findings) -> str:
    """What there is instead of a proof."""
    if found is None:
        return "no selftest of this machine and commit lies beside this run (launchbound selftest)"
    if not ran_alike(found, findings.results.run):
        other = "another dtype, thread count, layout of linear weights or modes"
        return f"the selftest of this machine is of {other}"
    rows = split_rows(found)
    counts = Counter(row["verdict"] for row in rows)
    others = [f"{counts[verdict]} {word}" for verdict, word in OPEN.items() if counts[verdict]]
    return (
        f"of {len(rows)} rows about the split in the selftest of this machine {counts['pass']} passed, "
        f"{' and '.join(others) or 'none was measured'}"
    )


def _rests_on(findings: Findings) -> Iterator[str]:
    """The samples of the main conditions, and what makes their intervals as wide as they are."""
    sampled = [
        (f"{short_name(summary)}, {phase.name}, batch {verdict.batch_size}", phase)
        for verdict in findings.main
        for summary in verdict.modes
        for phase in summary.phases
        if phase.samples is not None
    ]
    if not sampled:
        return
    total = sum(phase.samples.kernel + phase.samples.host for _, phase in sampled if phase.samples)
    case, worst = max(sampled, key=lambda one: _unclassified(one[1]))
    unclassified = "None of a step's were"
    if share := _unclassified(worst):
        unclassified = f"At most {_points(share)} % of a step's ({case}), counted at either end, were"
    yield (
        f"Dispatch and kernel rest on {total:,} samples of the engine's thread "
        f"({kernels_of(findings.results.run)}). {unclassified} in code of no class."
    )
    case, worst = max(sampled, key=lambda one: _counting(one[1]))
    yield (
        f"An interval adds up {', '.join(_left_open(findings))} and counting, at most "
        f"{_points(_counting(worst))} points ({case}). More samples narrow the last: more rounds, or more "
        "new tokens."
    )


def _left_open(findings: Findings) -> Iterator[str]:
    """The parts of an interval's width that no number of samples narrows."""
    classes, rate = findings.left_open
    yield f"classes {_points(classes)} (in % of either part)"
    yield f"the sampler's rate {_points(rate)} (in points of the share)"
    if findings.left_open != PROVED:
        passing = f"one that passes and stands for this run leaves {_points(PROVED.classes)}"
        whose = "as the selftest leaves them open" if findings.selftest else "without a selftest"
        yield f"both {whose} ({passing} and {_points(PROVED.rate)})"


def _unclassified(phase: PhaseMeans) -> float:
    found = phase.samples
    assert found is not None
    return found.unclassified / (found.kernel + found.host + found.unclassified)


def _counting(phase: PhaseMeans) -> float:
    assert phase.samples is not None
    return counting_error(phase.samples.kernel, phase.samples.host)


def _points(share: float) -> str:
    return significant(100 * share, 2)
