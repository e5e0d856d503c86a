"""The selftest that stands for a sweep's machine and commit: the newest complete one beside its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from loadtests.run.run_file import SweepRun
from service.statistics.sampled_share import MISCLASSED, PROVED

SELFTEST_FILE = "selftest.json"

BOUNDING_ROWS = {
    "a kernel 8 times longer: kernel": 1.0,
    "a kernel 8 times longer: dispatch": 0.0,
    "more host work per step: dispatch": 1.0,
    "more host work per step: kernel": 0.0,
    "sampled a fifth as often": 1.0,
}
"""What the names of the rows begin with that bound what is misclassed, and what each should have read: how
much of the injected work its part has got, and how much a part has changed that is sampled less often.
"""

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
    """Whether the selftest ran the sweep's modes and kernels: same dtype, threads, linear weights' layout."""
    engine = run.engine
    here = {"dtype": engine.get("dtype"), "threads": engine.get("threads")}
    here["linears"] = (engine.get("linears") or {}).get("layout")
    alike = all(found.get(key) == value for key, value in here.items())
    return alike and set(run.plan.ladder_modes) <= set(found.get("modes") or [])


def misclassed(found: Mapping[str, Any] | None) -> float:
    """How much of either part samples may take for the other: PROVED, or more where this machine's selftest
    does not exclude more. MISCLASSED without a selftest; 1, that is anything, where it does not say.
    """
    if found is None:
        return MISCLASSED
    errors = [
        max((1.0 if end is None else abs(end - right)) for end in (row.get("low"), row.get("high")))
        for name, right in BOUNDING_ROWS.items()
        for row in found["rows"]
        if row["name"].startswith(name)
    ]
    return min(1.0, max([PROVED, *errors] if errors else [1.0]))


def selftest_line(found: Mapping[str, Any] | None) -> str:
    """What a report says of it: the outcome, and by name every row that did not pass."""
    if found is None:
        return "not run on this machine and commit (launchbound selftest)"
    words = {"passed": "passed", "failed": "FAILED", "undecided": "undecided"}
    return f"{words[found['outcome']]}: {found['detail']}"
