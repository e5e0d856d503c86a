"""The rivals as a table, and the Python environment that each runs in."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtests.peers.process import RivalError
from service.parent_death import owned

INSTALL_SECONDS = 900.0
STAMP = ".installed"


@dataclass(frozen=True, slots=True)
class Rival:
    """A runtime: `loadtests.peers.rivals.model_<environment>`, run in the environment of `requirements`.

    `variant` is handed to that worker, which may hold several rivals. `outside_pytorch`: using it means
    leaving PyTorch.
    """

    name: str
    environment: str
    variant: str = ""
    outside_pytorch: bool = False

    @property
    def requirements(self) -> Path:
        """The file of pinned versions that its environment is made from."""
        return Path(__file__).with_name("requirements") / f"{self.environment}.txt"


RUNTIMES: tuple[Rival, ...] = (
    Rival("onnxruntime", "onnxruntime", outside_pytorch=True),
    Rival("openvino-genai", "openvino", outside_pytorch=True),
    Rival("ctranslate2", "ctranslate2", outside_pytorch=True),
    Rival("transformers", "transformers", "dynamic"),
    Rival("transformers-compiled", "transformers", "static"),
)

REMOVED = {"openvino": "torchvision"}
"""Uninstalled again: optimum-intel requires torchvision without using it here, and where pip has only a CPU
build of torch, torchvision is of another build and `transformers` cannot be imported."""


def peers_folder() -> Path:
    """Where environments and converted models are kept between runs. Raises RivalError without a home."""
    kept = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if kept.startswith("~"):
        raise RivalError("there is no home folder: set XDG_CACHE_HOME to a folder that you can write to")
    return Path(kept) / "launchbound" / "peers"


def interpreter(rival: Rival, report: Callable[[str], None]) -> Path:
    """The Python of `rival`'s environment, which is installed where it is missing or out of date.

    Raises RivalError where pip does not install it.
    """
    folder = peers_folder() / rival.environment / "environment"
    python = folder / "bin" / "python"
    wanted = hashlib.sha256(rival.requirements.read_bytes() + sys.version.encode()).hexdigest()
    stamp = folder / STAMP
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    report(f"{rival.environment}: installing {rival.requirements.name}")
    venv.create(folder, clear=True, with_pip=True)
    _pip(python, "install", "-r", str(rival.requirements))
    if removed := REMOVED.get(rival.environment):
        _pip(python, "uninstall", "--yes", removed)
    # Written last: an interrupted installation is begun again.
    stamp.write_text(wanted)
    return python


def _pip(python: Path, *arguments: str) -> None:
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    command = owned([*pip, *arguments], signal.SIGKILL)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise RivalError(f"pip {arguments[0]} took more than {INSTALL_SECONDS:.0f} s") from error
    if done.returncode:
        lines = done.stderr.splitlines()
        errors = [line for line in lines if line.startswith("ERROR")]
        raise RivalError((errors or lines or ["pip failed without a message"])[-1])
