"""Measure on this machine what the README says of machines, and keep it: `make evidence`, about an hour.

From a fresh clone with empty caches: `make bench`, `launchbound selftest`, then five quick sweeps with five
seeds, each of a start of its own, since starts of one build differ. Each is kept as soon as it is there, as
folders of `benchmarks/` to be committed:

    DATE-MACHINE-COMMIT              the sweep, its report by the selftest beside it
    DATE-MACHINE-COMMIT-selftest
    DATE-MACHINE-COMMIT-five-sweeps  whether their answers agree, and each one's tables

Nothing else should run meanwhile. It ends with 1 where a gate or a row fails; that is kept all the same.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from service.machine import processor_name

ROOT = Path(__file__).parents[2]
SEEDS = (11, 12, 13, 14, 15)
MOST_BENCH_SECONDS = 7 * 60
COMMAND = ".venv/bin/launchbound"
OF_A_SWEEP = ("report.md", "summary.csv", "validation.json")
"""What is kept of each of five: their rows are some megabytes."""

_OF_THE_CALLER = ("LAUNCHBOUND_", "MAKE", "MFLAGS")
"""What begins so is this service's settings, or says that a `make` runs within another."""

_NO_NAMES = {"amd", "intel", "gen", "cpu", "processor", "family", "model"}


def machine_name(processor: str, cores: int) -> str:
    """'epyc2' of an AMD EPYC with two cores: the first word of its name that is no vendor's."""
    words = "".join(letter if letter.isalpha() else " " for letter in processor.lower()).split()
    named = [word for word in words if len(word) > 2 and word not in _NO_NAMES]
    return f"{named[0] if named else 'machine'}{cores}"


def kept(results: Path, target: Path) -> None:
    """Copy a results folder without its logs, in place of what was kept of it before."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(results, target, ignore=shutil.ignore_patterns("*.log"))


class Evidence:
    """What is measured in `clone`, a fresh one of the tree, and kept under names that begin with `target`."""

    def __init__(self, clone: Path, target: Path) -> None:
        self._clone = clone
        self._target = target
        own = {name: value for name, value in os.environ.items() if not name.startswith(_OF_THE_CALLER)}
        self._environment = own | {"LAUNCHBOUND_CACHE_FOLDER": str(clone.parent / "cache")}
        self.failed: list[str] = []
        self.found: list[tuple[str, str, str]] = []

    def bench(self) -> None:
        """`make bench` with empty caches, timed."""
        began = monotonic()
        self._run("make", "bench", failed=2)
        seconds = monotonic() - began
        results = self._left("2*")
        kept(results, self._target)
        self._found("make bench, cold", _minutes(seconds), "≤ 7 min", seconds <= MOST_BENCH_SECONDS)
        waited = [row["cell"] for row in _rows(results / "summary.csv") if float(row["queue_seconds_mean"])]
        self._found("cells whose requests queued", str(len(waited)), "0", not waited)

    def selftest(self) -> None:
        """The complete selftest, and the report by it."""
        self._run(COMMAND, "selftest")
        folder = self._left("selftest-*")
        kept(folder, Path(f"{self._target}-selftest"))
        document = json.loads((folder / "selftest.json").read_text())
        counts: dict[str, Any] = document["counts"]
        said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
        self._found("selftest", said, "no row fails, complete", document["outcome"] == "passed")
        results = self._left("2*")
        self._run(COMMAND, "report", str(results))
        kept(results, self._target)

    def five_sweeps(self) -> None:
        """Quick sweeps, each of a start of its own, and what they say together."""
        together = Path(f"{self._target}-five-sweeps")
        shutil.rmtree(together, ignore_errors=True)
        # Beside the selftest, by which each report's intervals are.
        folders = [self._clone / "results" / f"seed-{seed}" for seed in SEEDS]
        for seed, folder in zip(SEEDS, folders, strict=True):
            self._run(COMMAND, "sweep", "--preset", "quick", "--seed", str(seed), "--out", str(folder))
            (together / folder.name).mkdir(parents=True)
            for name in OF_A_SWEEP:
                shutil.copy(folder / name, together / folder.name)
        pages = self._clone / "results" / "together"
        self._run(COMMAND, "report", *map(str, folders), "--out", str(pages))
        shutil.copy(pages / "runs.md", together / "README.md")
        document = json.loads((pages / "runs.json").read_text())
        agreed = all(group["replicates"] for group in document["repeats"]["groups"])
        self._found("five sweeps", document["headline"], "at least 4 of 5 everywhere", agreed)

    def _left(self, pattern: str) -> Path:
        """The folder that a command has left. Raises RuntimeError without one."""
        for path in (self._clone / "results").glob(pattern):
            return path
        raise RuntimeError(f"no results/{pattern} was left: what the command said stands above")

    def _run(self, *command: str, failed: int = 1) -> None:
        """Run `command` in the clone. That it `failed` is noted (make says 2); other exit codes raise."""
        print(f"\n== {' '.join(command)}", flush=True)
        code = subprocess.run(command, cwd=self._clone, env=self._environment, check=False).returncode
        if code not in (0, failed):
            raise RuntimeError(f"{' '.join(command)} ended with exit code {code}")
        if code:
            self.failed.append(" ".join(command[:2]))

    def _found(self, what: str, value: str, bound: str, holds: bool) -> None:
        self.found.append((what, value, f"{bound}{'' if holds else ': NO'}"))
        if not holds:
            self.failed.append(what)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def clone_of(root: Path, work: Path) -> tuple[Path, str]:
    """A fresh clone of `root` in `work`, and its commit. Raises ValueError for a tree with changes."""
    if _git(root, "status", "--porcelain", "--untracked-files=no"):
        raise ValueError("there are uncommitted changes: commit first, what is kept names its commit")
    clone = work / "clone"
    _git(root, "clone", "--quiet", str(root), str(clone))
    return clone, _git(root, "rev-parse", "--short=8", "HEAD")


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> int:
    """Measure, keep and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    default = machine_name(processor_name() or "", os.cpu_count() or 1)
    parser.add_argument("--machine", default=default, help=f"its name in the folders (default: {default})")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks", help="where they are kept")
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="launchbound-evidence-"))
    print(f"working in {work}, which stays there where this ends early", flush=True)
    try:
        clone, commit = clone_of(ROOT, work)
    except ValueError as error:
        work.rmdir()
        print(f"evidence: {error}", file=sys.stderr)
        return 2
    target = given.out / f"{datetime.now(UTC):%Y%m%d}-{given.machine}-{commit}"
    evidence = Evidence(clone, target)
    for measure in (evidence.bench, evidence.selftest, evidence.five_sweeps):
        measure()
    shutil.rmtree(work)
    print()
    for what, value, bound in evidence.found:
        print(f"{what}: {value} ({bound})")
    print(f"kept: {target}, {target.name}-selftest, {target.name}-five-sweeps")
    return 1 if evidence.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
