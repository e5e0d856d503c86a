"""Measure on this machine what the README says of machines, and keep it: `make evidence`, about 75 minutes.

From a fresh clone with empty caches: `make bench`, `launchbound selftest`, then several starts of two models,
the series of evidence.toml. Each is kept as soon as it is there, as folders of `benchmarks/` to be committed:

    DATE-MACHINE-COMMIT           the sweep, its report by the selftest beside it
    DATE-MACHINE-COMMIT-selftest
    DATE-MACHINE-COMMIT-starts    whether the starts agree and where the answer changes, and each one's tables

Nothing else should run meanwhile. It ends with 1 where a gate or a row fails; that is kept all the same.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from service.machine import processor_name

ROOT = Path(__file__).parents[2]
PLAN = "tests/support/evidence.toml"
SEED = "11"  # another than that of `make bench`
MOST_BENCH_MINUTES = 7
COMMAND = ".venv/bin/launchbound"
OF_A_SWEEP = ("report.md", "summary.csv", "validation.json")
"""What is kept of each start: its rows are some megabytes."""

_OF_THE_CALLER = ("LAUNCHBOUND_", "MAKE", "MFLAGS")
"""What begins so is this service's settings, or says that a `make` runs within another."""

Found = tuple[str, str, bool]
"""What was measured with its bound, what came out, and whether that holds."""


def measured(clone: Path, target: Path) -> Iterator[Found]:
    """Measure in `clone`, a fresh one of the tree; what comes is kept in folders named after `target`."""
    results = clone / "results"
    began = monotonic()
    yield run(clone, "make", "bench", failed=2)
    minutes = (monotonic() - began) / 60
    bench = next(results.glob("2*"))
    kept(bench, target)
    yield f"make bench, cold: ≤ {MOST_BENCH_MINUTES} min", f"{minutes:.1f} min", minutes <= MOST_BENCH_MINUTES
    with (bench / "summary.csv").open(encoding="utf-8", newline="") as file:
        queued = sum(bool(float(row["queue_seconds_mean"])) for row in csv.DictReader(file))
    yield "cells whose requests queued: 0", str(queued), not queued

    yield run(clone, COMMAND, "selftest")
    selftest = next(results.glob("selftest-*"))
    kept(selftest, Path(f"{target}-selftest"))
    document = json.loads((selftest / "selftest.json").read_text())
    yield "selftest: no row fails, complete", str(document["counts"]), document["outcome"] == "passed"
    yield run(clone, COMMAND, "report", str(bench))
    kept(bench, target)

    # Beside the selftest, by which each report's intervals are.
    series, together = results / "starts", Path(f"{target}-starts")
    yield run(clone, COMMAND, "sweep", "--plan", PLAN, "--seed", SEED, "--out", str(series))
    shutil.rmtree(together, ignore_errors=True)
    for report in series.glob(f"*/{OF_A_SWEEP[0]}"):
        (together / report.parent.name).mkdir(parents=True)
        for name in OF_A_SWEEP:
            shutil.copy(report.parent / name, together / report.parent.name)
    shutil.copy(series / "runs.md", together / "README.md")
    document = json.loads((series / "runs.json").read_text())
    agreed = [group["replicates"] for found in document["repeats"].values() for group in found["groups"]]
    yield "starts: at least 4 of 5 everywhere", document["headline"], all(agreed)


def run(clone: Path, *command: str, failed: int = 1) -> Found:
    """Run `command` in the clone; it may have `failed` (make says 2). Raises RuntimeError for other codes."""
    print(f"\n== {' '.join(command)}", flush=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith(_OF_THE_CALLER)}
    environment = own | {"LAUNCHBOUND_CACHE_FOLDER": str(clone.parent / "cache")}
    code = subprocess.run(command, cwd=clone, env=environment, check=False).returncode
    if code not in (0, failed):
        raise RuntimeError(f"{' '.join(command)} ended with exit code {code}")
    return " ".join(command[:2]), f"exit code {code}", not code


def kept(results: Path, target: Path) -> None:
    """Copy a results folder, in place of what was kept of it before. Logs and the samples of a selftest are
    left out: they name paths of this machine.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(results, target, ignore=shutil.ignore_patterns("*.log", "samples.jsonl"))


def git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Measure, keep and print; the exit code."""
    no_names = {"amd", "intel", "gen", "cpu", "processor", "family", "model"}
    words = re.findall(r"[a-z]{3,}", (processor_name() or "").lower())
    named = [word for word in words if word not in no_names]
    default = f"{named[0] if named else 'machine'}{os.cpu_count() or 1}"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--machine", default=default, help=f"its name in the folders (default: {default})")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks", help="where they are kept")
    given = parser.parse_args()
    if git("status", "--porcelain", "--untracked-files=no"):
        parser.error("there are uncommitted changes: commit first, what is kept names its commit")
    work = Path(tempfile.mkdtemp(prefix="launchbound-evidence-"))
    print(f"working in {work}, which stays there where this ends early", flush=True)
    git("clone", "--quiet", str(ROOT), str(work / "clone"))
    commit = git("rev-parse", "--short=8", "HEAD")
    target = given.out / f"{datetime.now(UTC):%Y%m%d}-{given.machine}-{commit}"
    found = list(measured(work / "clone", target))
    shutil.rmtree(work)
    print()
    for what, value, holds in found:
        print(f"{what}: {value}{'' if holds else ': NO'}")
    print(f"kept: {target}, {target.name}-selftest, {target.name}-starts")
    return 0 if all(holds for *_, holds in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
