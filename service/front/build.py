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
    folder = Path(__file__).resolve().parent
    command = ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return found.stdout.strip()
