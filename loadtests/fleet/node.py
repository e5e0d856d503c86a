"""What Ray runs on a node: `launchbound sweep` in a subprocess, whose folder is returned."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import msgspec

from loadtests.fleet.plan import Try, now
from loadtests.run.folder import git_state
from loadtests.run.run_file import PLAN_FILE
from service.parent_death import owned
from service.records import METHOD

SWEEP_LOG = "sweep.log"
"""What the sweep has printed, in its folder."""

Handle = Any
"""An actor of Ray, or a reference to what a task returns."""


class Brought(msgspec.Struct, kw_only=True, frozen=True):
    """What a sweep that took `seconds` by the node's clock has left: its folder as a zip file."""

    exit_code: int
    seconds: float
    folder: bytes


class Starts:
    """An actor on the driver's node: which sweeps begin, since Ray reports no retry."""

    def __init__(self) -> None:
        self._new: list[tuple[str, float, Try]] = []

    def begins(self, task: str, node: str, address: str, niceness: int) -> None:
        """A sweep begins now, on a node."""
        one = Try(node=node, address=address, started=now(), niceness=niceness)
        self._new.append((task, monotonic(), one))

    def take(self) -> list[tuple[str, float, Try]]:
        """Those since the last call: the task, the clock of this machine, and the try."""
        found, self._new = self._new, []
        return found


def installed_code() -> str:
    """What makes two installations of launchbound the same: version, commit, changes and method."""
    state = git_state()
    changed = f" with changes {state['changes']}" if state["changes"] else ""
    return f"{version('launchbound')}, commit {state['commit'] or 'unknown'}{changed}, method {METHOD}"


def sweep_on_node(task: str, plan: str, arguments: Sequence[str], code: str, starts: Handle) -> Brought:
    """Sweep the text of a `plan` by a command with these `arguments`, once this machine is free.

    Raises RuntimeError where this launchbound is not the driver's, which `code` is.
    """
    import ray

    if (own := installed_code()) != code:
        raise RuntimeError(f"it has launchbound {own}, this command is {code}: install the same on both")
    with machine_to_itself() as (folder, lock):
        node, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        ray.get(starts.begins.remote(task, node, address, os.nice(0)))
        return swept(plan, arguments, folder, lock)


@contextmanager
def machine_to_itself() -> Iterator[tuple[Path, int]]:
    """An empty folder of this machine, and the lock that gives it to one sweep at a time.

    The lock ends with the processes that have it; what a killed one has left is removed.
    """
    place = Path(tempfile.gettempdir(), f"launchbound-fleet-{os.getuid()}")
    place.mkdir(mode=0o700, exist_ok=True)
    if place.is_symlink() or place.stat().st_uid != os.getuid():
        raise RuntimeError(f"{place} belongs to another user: remove it there, or set TMPDIR")
    folder = place / "sweep"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder, lock.fileno()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def swept(plan: str, arguments: Sequence[str], folder: Path, lock: int) -> Brought:
    """What the sweep leaves. It ends with this process, and holds `lock` until then."""
    results, plan_file = folder / "results", folder / PLAN_FILE
    results.mkdir()
    plan_file.write_text(plan, encoding="utf-8")
    command = [sys.executable, *arguments, f"--plan={plan_file}", f"--out={results}"]
    began = perf_counter()
    with (results / SWEEP_LOG).open("wb") as log:
        done = subprocess.run(
            owned(command, signal.SIGKILL),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment_before_ray(),
            pass_fds=[lock],
            check=False,
        )
    return Brought(exit_code=done.returncode, seconds=perf_counter() - began, folder=packed(results))


def environment_before_ray() -> dict[str, str]:
    """The variables with which this process was started, as `ray start` had them.

    Ray sets OMP_NUM_THREADS and CUDA_VISIBLE_DEVICES inside its workers: a sweep would measure with these.
    """
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs if not name.startswith(("RAY_", "SPT_NOENV"))}


def packed(folder: Path) -> bytes:
    """The files of `folder` as a zip file."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder))
    return data.getvalue()
