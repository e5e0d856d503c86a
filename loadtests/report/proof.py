"""Whether the split into dispatch and kernel is proved on this machine, and by how much witnesses differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadtests.report.machine_selftest import find_selftest, selftest_line
from loadtests.report.verdict import Findings
from loadtests.report.witnesses import witnesses, witnesses_told

SPLIT_ROWS = (
    "dispatch, twin / stacks",
    "kernel time equal in the plain modes",
    "a kernel 8 times longer",
    "more host work per step",
    "intercept over four widths",
)
"""What the names of a selftest's rows about the split begin with."""

NOT_PROVED = "Not proved on this machine"


@dataclass(frozen=True, slots=True)
class Proof:
    """`proved` None: the device measures both parts, or neither, and there is nothing to prove."""

    proved: bool | None
    sentences: list[str]
    selftest: str


def proof(findings: Findings) -> Proof:
    """What backs the split of this run: stacks sampled in its own engine, or a selftest of its machine."""
    found = find_selftest(findings.results.folder, findings.results.run)
    told = selftest_line(found)
    if not findings.upper_estimate:
        return Proof(None, [], told)
    seen = list(witnesses(findings))
    sampled = bool(seen) and all(witness.spanned for witness in seen)
    backed = sampled or (found is not None and backs(found, findings))
    sentences = [] if backed else [f"{NOT_PROVED}: {_missing(found, bool(seen))}."]
    if seen:
        sentences += witnesses_told(seen, findings)
    return Proof(backed, sentences, told)


def backs(selftest: Mapping[str, Any], findings: Findings) -> bool:
    """Whether a complete selftest proves this run's split.

    One that failed nothing, with the run's dtype, threads and modes, in which every row about the split that
    could be measured passed: an undecided one does not count.
    """
    engine = findings.results.run.engine
    alike = all(selftest.get(key) == engine.get(key) for key in ("dtype", "threads"))
    whole = set(findings.results.run.plan.modes) <= set(selftest.get("modes") or [])
    rows = [row for row in selftest["rows"] if row["name"].startswith(SPLIT_ROWS)]
    verdicts = {row["verdict"] for row in rows} - {"not measurable here"}
    return selftest["outcome"] != "failed" and alike and whole and verdicts == {"pass"}


def _missing(found: Mapping[str, Any] | None, seen: bool) -> str:
    """What there is instead of a proof."""
    sampled = "the split rests on the hollow twin alone, no native stacks were sampled in this engine"
    if seen:
        sampled = "native stacks sampled in this engine lie outside the intervals"
    if found is None:
        return f"{sampled}, and no selftest of this machine and commit lies beside it (launchbound selftest)"
    detail = found.get("detail", "no detail")
    return f"{sampled}, and the selftest of this machine does not back it ({detail})"
