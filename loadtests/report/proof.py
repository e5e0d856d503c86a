"""Whether the split into dispatch and kernel is proved on this machine, and by how much witnesses differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from loadtests.report.verdict import Findings
from loadtests.report.witnesses import witnesses, witnesses_told

SELFTEST_FILE = "selftest.json"
SPLIT_ROWS = ("kernel share", "intercept")
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
    found = newest_selftest(findings)
    told = _told(found)
    if not findings.upper_estimate:
        return Proof(None, [], told)
    seen = list(witnesses(findings))
    sampled = bool(seen) and all(witness.spanned for witness in seen)
    backed = sampled or (found is not None and backs(found, findings))
    sentences = [] if backed else [f"{NOT_PROVED}: {_missing(found, bool(seen))}."]
    if seen:
        sentences += witnesses_told(seen, findings)
    return Proof(backed, sentences, told)


def newest_selftest(findings: Findings) -> dict[str, Any] | None:
    """The newest selftest of this machine and commit beside the results."""
    here = findings.results.run.environment
    for path in sorted(findings.results.folder.parent.glob(f"*/{SELFTEST_FILE}"), reverse=True):
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        if (found.get("commit"), found.get("cpu")) == (here.get("commit"), here.get("cpu")):
            return found
    return None


def backs(selftest: dict[str, Any], findings: Findings) -> bool:
    """Whether a selftest proves this run's split.

    A whole one that failed nothing, of a clean commit, with the run's dtype, threads and modes, in which
    every row about the split that could be measured passed: an undecided one does not count.
    """
    engine = findings.results.run.engine
    modes = set(findings.results.run.plan.modes)
    alike = all(selftest.get(key) == engine.get(key) for key in ("dtype", "threads"))
    whole = (
        not selftest.get("dirty")
        and not selftest.get("partial")
        and modes <= set(selftest.get("modes") or [])
    )
    rows = [row for row in selftest.get("rows") or [] if row["name"].startswith(SPLIT_ROWS)]
    verdicts = {row["verdict"] for row in rows} - {"not measurable here"}
    return bool(selftest.get("passed")) and alike and whole and verdicts == {"pass"}


def _missing(found: dict[str, Any] | None, seen: bool) -> str:
    """What there is instead of a proof."""
    sampled = "the split rests on the hollow twin alone, no native stacks were sampled in this engine"
    if seen:
        sampled = "native stacks sampled in this engine lie outside the intervals"
    if found is None:
        return f"{sampled}, and no selftest of this machine and commit lies beside it (launchbound selftest)"
    detail = found.get("detail", "no detail")
    return f"{sampled}, and the selftest of this machine does not back it ({detail})"


def _told(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not run on this machine and commit (launchbound selftest)"
    open_rows = [row["name"] for row in found.get("rows") or [] if row["verdict"] == "undecided"]
    undecided = f"; undecided: {', '.join(open_rows)}" if open_rows else ""
    return f"{'passed' if found.get('passed') else 'FAILED'}: {found.get('detail', '')}{undecided}"
