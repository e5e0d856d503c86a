"""The rivals: a table, the Python environment of each, and its process, which answers line by line."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from loadtests.run.folder import REPOSITORY
from service.parent_death import owned

STOP_SECONDS = 10.0
INSTALL_SECONDS = 900.0
STAMP = ".installed"

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""For libraries that count cores when they are imported."""

QUIET = {
    "TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0",
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
}  # fmt: skip
"""A rival that waits does not spin, and none uses the network."""


class RivalError(RuntimeError):
    """A rival that cannot be installed, named an error, ended, or took too long; the message says which."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A runtime: `loadtests.peers.rivals.model_<environment>`, run in the environment of `requirements`, or
    of OURS by this Python.

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


OURS = "launchbound"
"""The environment of this project, which runs its own steps in other precisions."""

RUNTIMES: tuple[Rival, ...] = (
    Rival("onnxruntime", "onnxruntime", outside_pytorch=True),
    Rival("openvino-genai", "openvino", outside_pytorch=True),
    Rival("ctranslate2", "ctranslate2", outside_pytorch=True),
    Rival("transformers", "transformers", "dynamic"),
    Rival("transformers-compiled", "transformers", "static"),
    Rival("aot-inductor-bfloat16", OURS, "bfloat16"),
    Rival("aot-inductor-int8", OURS, "int8"),
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
    if rival.environment == OURS:
        return Path(sys.executable)
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


class RivalProcess(AbstractContextManager["RivalProcess"]):
    """One long-lived process that answers one line at a time."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start `command` in the repository; what it prints on standard error goes to `log`.

        It ends when this process does. Start it from a thread that runs as long as it may.
        """
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                owned(command, signal.SIGKILL),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=REPOSITORY,
                env={**os.environ, **ONE_THREAD, **QUIET, "PYTHONPATH": str(REPOSITORY)},
                # A group of its own, which ends as a whole; a Ctrl-C at the terminal is the driver's.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._pending = b""

    def ask(self, document: Mapping[str, object], timeout_seconds: float) -> dict[str, Any]:
        """The answer to `document`. Raises RivalError where there is none in time, or it names an error."""
        try:
            self._input.write(json.dumps(document).encode() + b"\n")
            self._input.flush()
        except OSError as error:
            raise RivalError(self._ended()) from error
        line = self._line(timeout_seconds)
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise RivalError(f"answered {line[:200]!r}, which is not JSON") from error
        if not isinstance(answer, dict):
            raise RivalError(f"answered {line[:200]!r}, which is no object")
        if "error" in answer:
            raise RivalError(str(answer["error"]))
        return answer

    def _line(self, timeout_seconds: float) -> bytes:
        deadline = monotonic() + timeout_seconds
        while b"\n" not in self._pending:
            if not select.select([self._output], [], [], max(0.0, deadline - monotonic()))[0]:
                raise RivalError(f"no answer within {timeout_seconds:.0f} s")
            piece = os.read(self._output.fileno(), 1 << 16)
            if not piece:
                raise RivalError(self._ended())
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _ended(self) -> str:
        """Why it ended: its code, and the last line that it logged."""
        try:
            code: object = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            code = "none yet"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"its process ended with code {code}: {(lines or ['it logged nothing'])[-1][:300]}"

    def __exit__(self, *_: object) -> None:
        """End the process and all that it started."""
        with suppress(OSError):
            self._input.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()
