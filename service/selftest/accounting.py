"""What the rows of a selftest amount to: which passed, which did not, and whether all of it was run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from service.front.settings import Settings
from service.selftest.checks import ALL_CHECKS
from service.selftest.results import CheckResult

Outcome = Literal["passed", "failed", "undecided", "partial"]

MEASURED_AS_DEFAULT = (
    "model",
    "modes",
    "batch_sizes",
    "prefill_chunk",
    "context",
    "threads",
    "instrumentation",
    "profile_every",
)
"""Settings that a complete selftest has at their defaults: the numbers that it proves depend on them."""


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Names of rows by their verdict; `not_run` are names of checks."""

    passed: list[str]
    failed: list[str]
    undecided: list[str]
    not_measurable: list[str]
    not_run: list[str]

    def outcome(self, complete: bool) -> Outcome:
        """`passed` only where the selftest was `complete`, and no row failed or is undecided."""
        if self.failed:
            return "failed"
        if not complete:
            return "partial"
        return "undecided" if self.undecided else "passed"

    def counts(self) -> dict[str, int]:
        """How many of each."""
        return {name: len(names) for name, names in self._lists().items()}

    def sentence(self) -> str:
        """How many rows passed of those that ran, and the names of all others by verdict."""
        lists = self._lists()
        ran = sum(len(lists[name]) for name in ("passed", "failed", "undecided"))
        parts = [f"{len(self.passed)} of {ran} rows passed"]
        for name in ("failed", "undecided", "not_measurable", "not_run"):
            shown = name.replace("_", " ") + (" here" if name == "not_measurable" else "")
            if lists[name]:
                parts.append(f"{shown}: {', '.join(lists[name])}")
        return "; ".join(parts)

    def _lists(self) -> dict[str, list[str]]:
        return msgspec.structs.asdict(self)


def tally(rows: Iterable[CheckResult], finished: Collection[str]) -> Tally:
    """`rows` by verdict; `finished` are the checks that have their rows, the others were not run."""
    by_verdict: dict[str, list[str]] = {}
    for row in rows:
        by_verdict.setdefault(row.verdict, []).append(row.name)
    return Tally(
        passed=by_verdict.get("pass", []),
        failed=by_verdict.get("fail", []),
        undecided=by_verdict.get("undecided", []),
        not_measurable=by_verdict.get("not measurable here", []),
        not_run=[name for name in ALL_CHECKS if name not in finished],
    )


def why_incomplete(
    settings: Settings, facts: Mapping[str, str | int], git: Mapping[str, object], not_run: Collection[str]
) -> list[str]:
    """Why a selftest does not stand for its machine and commit; empty where it does.

    `facts` are the worker's, with `dtype` and the device's `default_dtype`; `git` has `commit` and `dirty`.
    """
    reasons = [f"{len(not_run)} of {len(ALL_CHECKS)} checks were not run"] if not_run else []
    if git.get("commit") is None:
        reasons.append("the commit is unknown")
    if git.get("dirty"):
        reasons.append("uncommitted changes")
    for name in MEASURED_AS_DEFAULT:
        value = getattr(settings, name)
        if value != Settings.model_fields[name].get_default(call_default_factory=True):
            shown = ",".join(map(str, value)) if isinstance(value, list) else value
            reasons.append(f"{name} is {shown}")
    if facts.get("dtype") != facts.get("default_dtype"):
        reasons.append(f"dtype is {facts.get('dtype')}")
    return reasons
