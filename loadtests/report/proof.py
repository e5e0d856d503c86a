"""Whether the split into dispatch and kernel is proved on this machine, and by how much witnesses differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadtests.report.machine_selftest import ran_alike, selftest_line
from loadtests.report.verdict import Findings
from loadtests.report.witnesses import witnesses, witnesses_told

SPLIT_ROWS = (
    "samples in functions without a name",
    "dispatch, twin / stacks",
    "kernel time equal in the plain modes",
    "instructions in kernels",
    "host instructions as the batch grows",
    "a kernel 8 times longer",
    "more host work per step",
    "sampled a fifth as often",
    "intercept over four widths",
    "dispatch of a sampled request",
    "samples within a request's steps",
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
    if not findings.upper_estimate:
        return Proof(None, [], told)
    seen = list(witnesses(findings))
    backed = found is not None and backs(found, findings)
    sentences = (
        []
        if backed
        else [f"{NOT_PROVED}: {_missing(found, findings, bool(seen) or _visits_sampled(findings))}."]
    )
    sentences += witnesses_told(seen, findings)
    return Proof(backed, sentences, told)


def split_rows(selftest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows about the split that could be measured."""
    rows = [row for row in selftest["rows"] if row["name"].startswith(SPLIT_ROWS)]
    return [row for row in rows if row["verdict"] != "not measurable here"]


def backs(selftest: Mapping[str, Any], findings: Findings) -> bool:
    """Whether a complete selftest proves this run's split.

    One with the run's dtype, threads, layout and modes, in which every row about the split that could be
    measured passed: an undecided one does not count.
    """
    verdicts = {row["verdict"] for row in split_rows(selftest)}
    return ran_alike(selftest, findings.results.run) and verdicts == {"pass"}


def _visits_sampled(findings: Findings) -> bool:
    phases = (phase for v in findings.main for summary in v.modes for phase in summary.phases)
    return any(phase.samples is not None for phase in phases)


def _missing(found: Mapping[str, Any] | None, findings: Findings, sampled: bool) -> str:
    """What there is instead of a proof."""
    rests = "sampled native stacks" if sampled else "the hollow twin alone, no native stacks were sampled"
    rests = f"the split rests on {rests}"
    if found is None:
        return f"{rests}, and no selftest of this machine and commit lies beside it (launchbound selftest)"
    if not ran_alike(found, findings.results.run):
        other = "another dtype, thread count, layout of linear weights or modes"
        return f"{rests}, and the selftest of this machine is of {other}"
    rows = split_rows(found)
    counts = Counter(row["verdict"] for row in rows)
    others = [f"{counts[verdict]} {word}" for verdict, word in OPEN.items() if counts[verdict]]
    return (
        f"{rests}, and of {len(rows)} rows about it in the selftest of this machine {counts['pass']} passed, "
        f"{' and '.join(others) or 'none was measured'}"
    )
