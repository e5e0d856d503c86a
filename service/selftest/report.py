"""The document of a selftest, `selftest.json`: contents, folder, reading and writing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from loadtests.run.environment import git_state
from service.front.settings import Settings
from service.protocol.processor import processor_features, processor_name
from service.selftest.accounting import Outcome, Tally, tally, why_incomplete
from service.selftest.results import CheckResult

FILE = "selftest.json"
FORMAT_VERSION = 2


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One selftest.

    `machine` is the processor, and the GPU if one was used; `device` the one that ran the model. `linears` is
    how linear weights lay in memory, which decides which kernels ran (None: before it was recorded). Only a
    `complete` one stands for its machine and commit; else `incomplete_because` has the reasons. `counts` and
    `rows_by_verdict` list what the verdict is made of, `detail` says the same in a sentence.
    """

    format_version: int = FORMAT_VERSION
    commit: str | None
    dirty: bool | None
    machine: str
    cpu: str
    cpu_features: str | None
    device: str
    outcome: Outcome
    complete: bool
    incomplete_because: list[str]
    counts: dict[str, int]
    rows_by_verdict: Tally
    detail: str
    torch: str
    threads: int
    dtype: str
    linears: str | None = None
    model: str
    created: str
    modes: list[str]
    seconds: float
    rows: list[CheckResult]

    @property
    def summary(self) -> dict[str, Any]:
        """What the command's last line says: the outcome, and every row that did not pass by its name."""
        names = msgspec.structs.asdict(self.rows_by_verdict)
        del names["passed"]
        reasons = self.incomplete_because
        return {"outcome": self.outcome, "complete": self.complete, "incomplete_because": reasons,
                "counts": self.counts, **names}  # fmt: skip


def new_report(
    rows: list[CheckResult],
    finished: Collection[str],
    facts: Mapping[str, str | int],
    settings: Settings,
    seconds: float,
) -> Report:
    """`rows` of the checks that have `finished`, with the commit, the machine and the settings."""
    git = git_state()
    found = tally(rows, finished)
    reasons = why_incomplete(settings, facts, git, found.not_run)
    names = dict.fromkeys(str(facts.get(key, "unknown")) for key in ("cpu", "device"))
    return Report(
        commit=git["commit"],
        dirty=git["dirty"],
        machine=" + ".join(names),
        cpu=processor_name(),
        cpu_features=processor_features(),
        device=str(facts.get("device", "unknown")),
        outcome=found.outcome(not reasons),
        complete=not reasons,
        incomplete_because=reasons,
        counts=found.counts(),
        rows_by_verdict=found,
        detail=found.sentence(),
        torch=str(facts.get("torch", "unknown")),
        threads=int(facts.get("threads", 0)),
        dtype=str(facts.get("dtype", "unknown")),
        linears=None if "linears" not in facts else str(facts["linears"]),
        model=settings.model,
        modes=settings.modes,
        seconds=seconds,
        rows=rows,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def new_folder(root: Path | str = "results") -> Path:
    """A fresh folder `<root>/selftest-<UTC>-<commit>`."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = Path(root) / f"selftest-{stamp}-{(git_state()['commit'] or 'nocommit')[:8]}"
    folder.mkdir(parents=True)
    return folder


def write(report: Report, folder: Path) -> Path:
    """Write `selftest.json`; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return path


def read(path: Path) -> Report:
    """A report as written. Raises msgspec.DecodeError or OSError."""
    return msgspec.json.decode(path.read_bytes(), type=Report)
