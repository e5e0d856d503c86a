"""Where the load tests' own code lies, and its commit. The service says its own (GET /v1/modes)."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def git_state(folder: Path = REPOSITORY) -> dict[str, Any]:
    """`commit` (12 digits), `dirty`, and a digest of the `changes` to tracked files, None without any.

    Where there is no repository: LAUNCHBOUND_COMMIT or None, and neither is known.
    """
    commit = _run("git", "-C", str(folder), "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return {"commit": os.environ.get("LAUNCHBOUND_COMMIT"), "dirty": None, "changes": None}
    changed = _run("git", "-C", str(folder), "diff", "HEAD", "--binary")
    digest = hashlib.sha256(changed.encode()).hexdigest()[:12] if changed else None
    return {"commit": commit, "dirty": bool(changed), "changes": digest}


def _run(*command: str) -> str | None:
    """What `command` prints, or None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
