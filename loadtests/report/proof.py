"""Whether the split into dispatch and kernel is proved on this machine, and by how much witnesses differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from loadtests.report import formatting
from loadtests.report.payback import bucket_of
from loadtests.report.verdict import Findings
from service.statistics.intervals import Interval

SELFTEST_FILE = "selftest.json"
SPLIT_ROWS = ("kernel share", "intercept")
"""What the names of a selftest's rows about the split begin with."""

NOT_PROVED = "Not proved on this machine"


@dataclass(frozen=True, slots=True)
class Witness:
    """Kernel's share of one step, by the twin's floor and by the engine's sampled native stacks."""

    mode: str
    phase: str
    batch: int
    twin: Interval
    stacks: Interval
    spanned: bool

    @property
    def difference(self) -> float:
        """How far the two lie apart, as a share; above 0: the twin says more kernel."""
        return self.twin.value - self.stacks.value


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
    backed = bool(seen) or (found is not None and backs(found, findings))
    sentences = [] if backed else [f"{NOT_PROVED}: {_missing(found)}."]
    if seen:
        sentences.append(_compared(seen))
        sentences += _uncovered(seen, findings)
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

    A whole one that failed nothing, of a clean commit, with the run's dtype, threads and modes, in which every
    row about the split that could be measured passed: an undecided one does not count.
    """
    engine = findings.results.run.engine
    modes = set(findings.results.run.plan.modes)
    alike = all(selftest.get(key) == engine.get(key) for key in ("dtype", "threads"))
    whole = not selftest.get("dirty") and not selftest.get("partial") and modes <= set(selftest["modes"])
    rows = [row for row in selftest.get("rows") or [] if row["name"].startswith(SPLIT_ROWS)]
    verdicts = {row["verdict"] for row in rows} - {"not measurable here"}
    return bool(selftest.get("passed")) and alike and whole and verdicts == {"pass"}


def witnesses(findings: Findings) -> Iterator[Witness]:
    """Every (mode, phase, batch) of the main conditions whose native stacks were sampled."""
    run = findings.results.run
    buckets = run.engine.get("batch_buckets") or []
    stacks = {
        (floor["mode"], floor["phase"], floor["batch"]): floor
        for floor in [*run.floors_before, *run.floors_after]
        if floor.get("stacks")
    }
    for verdict in findings.main:
        for summary in verdict.modes:
            for phase in summary.phases:
                floor = stacks.get((summary.cell.mode, phase.name, bucket_of(verdict.batch_size, buckets)))
                wall = phase.step_wall_seconds
                if floor is None or not wall:
                    continue
                twin = _share_left(floor, wall)
                seen = _interval(floor["stacks"], "kernel_share")
                spanned = phase.interval is not None and all(
                    phase.interval.low <= share <= phase.interval.high for share in (twin.value, seen.value)
                )
                yield Witness(summary.cell.mode, phase.name, verdict.batch_size, twin, seen, spanned)


def _share_left(floor: dict[str, Any], wall: float) -> Interval:
    """Kernel's share of a step by the twin: 1 − floor / wall, at least 0."""
    value, low, high = (max(0.0, 1 - floor[end] / wall) for end in ("seconds", "high", "low"))
    return Interval(value, low, high, int(floor["samples"]))


def _interval(found: dict[str, Any], name: str) -> Interval:
    return Interval(found[name], found["low"], found["high"], int(found["samples"]))


def _compared(seen: list[Witness]) -> str:
    worst = max(seen, key=lambda witness: abs(witness.difference))
    points = f"{100 * abs(worst.difference):.0f} points"
    case = f"{worst.mode}, {worst.phase}, batch {worst.batch}"
    shares = f"{worst.twin.value:.0%} kernel by the twin, {worst.stacks.value:.0%} by sampled native stacks"
    apart = worst.twin.low > worst.stacks.high or worst.stacks.low > worst.twin.high
    verb = "disagree by up to" if apart else "agree within"
    missed = [witness for witness in seen if not witness.spanned]
    reach = "the intervals span both"
    if missed:
        where = formatting.listed([f"{w.mode} {w.phase} batch {w.batch}" for w in missed[:3]])
        reach = f"the intervals do NOT span both in {len(missed)} of {len(seen)} cases ({where})"
    return f"On this machine the two witnesses of the split {verb} {points} ({case}: {shares}); {reach}."


def _uncovered(seen: list[Witness], findings: Findings) -> Iterator[str]:
    steps = [(s, p) for v in findings.main for s in v.modes for p in s.phases if p.step_wall_seconds]
    if len(seen) < len(steps):
        yield f"Native stacks were sampled for {len(seen)} of {len(steps)} combinations of mode, phase and batch."


def _missing(found: dict[str, Any] | None) -> str:
    sampled = "the split rests on the hollow twin alone, no native stacks were sampled in this engine"
    if found is None:
        return f"{sampled}, and no selftest of this machine and commit lies beside it (launchbound selftest)"
    return (
        f"{sampled}, and the selftest of this machine does not back it ({found.get('detail', 'no detail')})"
    )


def _told(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not run on this machine and commit (launchbound selftest)"
    open_rows = [row["name"] for row in found.get("rows") or [] if row["verdict"] == "undecided"]
    undecided = f"; undecided: {', '.join(open_rows)}" if open_rows else ""
    return f"{'passed' if found.get('passed') else 'FAILED'}: {found.get('detail', '')}{undecided}"
