"""The version and commit of this program."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

UNKNOWN = "unknown"


def build_version() -> str:
    """The installed distribution's version; 'unknown' where it runs from a bare folder."""
    try:
        return version("launchbound")
    except PackageNotFoundError:
        return UNKNOWN


def build_commit(stated: str | None) -> str:
    """`stated` (set in an image), else the commit of this folder's git repository, else 'unknown'."""
    if stated is not None:
        return stated
    return _git("rev-parse", "--short=12", "HEAD") or UNKNOWN


def build_dirty() -> bool | None:
    """Whether this folder's git repository has uncommitted changes; None where there is no repository."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return None if changed is None else bool(changed)


def _git(*arguments: str) -> str | None:
    """What git prints of this folder's repository; None where there is none, or no git."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
