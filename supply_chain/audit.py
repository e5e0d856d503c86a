"""Fail where a package of requirements.lock has a known vulnerability: `python -m supply_chain.audit`.

Exit code 0: none is known, or the service was not reached, which one line says; 1: some are known, or with
`--required` the service was not reached; 2: a file cannot be read, or pip-audit itself failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from supply_chain.ignored import IgnoredError, read_ignored
from supply_chain.verdict import Verdict, judged
from supply_chain.vulnerability_service import Audited, AuditError, NotReached, ask

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
IGNORED = Path(__file__).with_name("ignored.toml")

SERVICE_VARIABLE = "PIP_AUDIT_OSV_URL"
"""pip-audit's own: the address of another service that speaks OSV's protocol."""

SERVICE = "https://api.osv.dev/v1/query"

FIRST_SECONDS = 8.0
"""For the first package alone, pip-audit's own start included: without a network nobody waits longer."""

WHOLE_SECONDS = 60.0
"""For all of them, which are asked for one after the other."""


def audited(lock: Path, service: str) -> list[Audited]:
    """What `service` knows of every package of `lock`.

    Raises NotReached where it does not answer, and AuditError for a file that is no list of pinned packages.
    """
    try:
        lines = lock.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise AuditError(f"cannot read {lock}: {error}; name a lock file with --lock") from error
    pinned = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not pinned:
        raise AuditError(f"{lock} names no package; name a lock file with --lock")
    with TemporaryDirectory() as folder:
        first = Path(folder, "first.txt")
        first.write_text(f"{pinned[0]}\n", encoding="utf-8")
        ask(first, service, FIRST_SECONDS)
    found = ask(lock, service, WHOLE_SECONDS)
    if len(found) != len(pinned):
        raise AuditError(
            f"pip-audit answered for {len(found)} of {len(pinned)} lines of {lock}: pin each once"
        )
    return found


def today() -> date:
    """The date in UTC, by which entries of the ignore list end."""
    return datetime.now(UTC).date()


def report(lock: Path, verdict: Verdict) -> int:
    """Print what was found; returns the exit code."""
    for line in [*verdict.ignored, *verdict.notes]:
        print(f"{lock.name}: {line}")
    if not verdict.failures:
        other = "other " if verdict.ignored else ""
        print(f"{lock.name}: {verdict.packages} packages, no {other}known vulnerability")
        return 0
    print(f"{lock.name}: known vulnerabilities: {len(verdict.failures)}", file=sys.stderr)
    for failure in verdict.failures:
        print(f"  {failure}", file=sys.stderr)
    print(
        f"raise the version in {lock.name}, or say in supply_chain/{IGNORED.name} why it cannot matter",
        file=sys.stderr,
    )
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m supply_chain.audit", description=__doc__)
    parser.add_argument("--lock", type=Path, default=LOCK, help="the pinned packages")
    parser.add_argument("--ignored", type=Path, default=IGNORED, help="vulnerabilities that may stay")
    parser.add_argument("--required", action="store_true", help="fail where the service is not reached")
    chosen = parser.parse_args(arguments)
    service = os.environ.get(SERVICE_VARIABLE, SERVICE)
    try:
        ignored = read_ignored(chosen.ignored)
        verdict = judged(audited(chosen.lock, service), ignored, today())
    except NotReached as reason:
        print(f"{chosen.lock.name}: not audited, {service} was not reached ({reason})", file=sys.stderr)
        return 1 if chosen.required else 0
    except (AuditError, IgnoredError) as error:
        print(error, file=sys.stderr)
        return 2
    return report(chosen.lock, verdict)


if __name__ == "__main__":
    sys.exit(main())
