"""What known vulnerabilities mean for the lock file: each fails, but for those that are ignored today."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from supply_chain.ignored import Ignored
from supply_chain.vulnerability_service import Audited, Vulnerability


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many packages were asked for, a line for each that fails or is ignored, and notes."""

    packages: int
    failures: list[str]
    ignored: list[str]
    notes: list[str]


def judged(found: Sequence[Audited], ignored: Sequence[Ignored], today: date) -> Verdict:
    """Each vulnerability fails unless one of `ignored` names it and its package, and lasts until `today`."""
    failures, stays = list[str](), list[str]()
    used = set[Ignored]()
    for package in found:
        for vulnerability in package.vulns:
            line = _told(package, vulnerability)
            covering = [each for each in ignored if _covers(each, package, vulnerability)]
            used |= set(covering)
            lasting = [each for each in covering if today <= each.until]
            if lasting:
                stays.append(f"{line}; stays until {lasting[0].until}: {lasting[0].reason}")
            elif covering:
                failures.append(f"{line}; ignored until {covering[0].until}, which is past")
            else:
                failures.append(line)
    notes = [
        f"{each.id} of {each.package} is ignored but not known of it: remove the entry"
        for each in ignored
        if each not in used
    ]
    return Verdict(len(found), failures, stays, notes)


def _covers(entry: Ignored, package: Audited, vulnerability: Vulnerability) -> bool:
    same_package = _canonical(entry.package) == _canonical(package.name)
    return same_package and entry.id in {vulnerability.id, *vulnerability.aliases}


def _canonical(name: str) -> str:
    """A package's name as the index compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _told(package: Audited, vulnerability: Vulnerability) -> str:
    also = f" ({', '.join(sorted(vulnerability.aliases))})" if vulnerability.aliases else ""
    fixed = ", ".join(vulnerability.fix_versions)
    remedy = f"fixed in {fixed}" if fixed else "not fixed in any version yet"
    return f"{package.name} {package.version}: {vulnerability.id}{also}, {remedy}"
