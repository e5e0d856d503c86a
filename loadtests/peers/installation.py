"""Makes a rival's own Python environment from its pinned requirements, once."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from loadtests.peers.catalogue import REMOVED, Rival
from service.parent_death import owned

INSTALL_SECONDS = 900.0
_STAMP = ".installed"


class NotInstalled(RuntimeError):
    """A rival's environment cannot be made; the message has the remedy, or the last that pip said."""


def peers_folder() -> Path:
    """Where environments and converted models are kept between runs. Raises NotInstalled without a home."""
    kept = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if kept.startswith("~"):
        raise NotInstalled("there is no home folder: set XDG_CACHE_HOME to a folder that you can write to")
    return Path(kept) / "launchbound" / "peers"


def interpreter(rival: Rival, root: Path, report: Callable[[str], None]) -> Path:
    """The Python of `rival`'s environment under `root`, installed first where it is missing or out of date.

    Raises NotInstalled where pip does not install it.
    """
    folder = root / rival.environment / "environment"
    python = folder / "bin" / "python"
    wanted = _digest(rival.requirements)
    stamp = folder / _STAMP
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    report(f"{rival.environment}: installing {rival.requirements.name}")
    venv.create(folder, clear=True, with_pip=True)
    _pip(python, "install", "-r", str(rival.requirements))
    if removed := REMOVED.get(rival.environment):
        _pip(python, "uninstall", "--yes", *removed)
    # Written last: an interrupted installation is begun again.
    stamp.write_text(wanted)
    return python


def _digest(requirements: Path) -> str:
    """Of the pinned versions and of this interpreter, of whose version the environment is."""
    text = requirements.read_bytes() + sys.version.encode()
    return hashlib.sha256(text).hexdigest()


def _pip(python: Path, *arguments: str) -> None:
    command = owned(
        [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], signal.SIGKILL
    )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"pip {arguments[0]} took more than {INSTALL_SECONDS:.0f} s") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled((errors or done.stderr.splitlines() or ["pip failed without a word"])[-1])
