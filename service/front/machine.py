"""What this process is and where it runs: build, machine, load, and the cores that it claims."""

from __future__ import annotations

import errno
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from service.machine import processor_features, processor_name, siblings
from service.nvml import PROGRAM
from service.records import METHOD

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def machine(stated_commit: str | None = None) -> dict[str, Any]:
    """The service as it says itself in GET /v1/modes; what cannot be read is None.

    `stated_commit` is that of an image. The first call runs git and asks NVML, which takes up to seconds.
    """
    return {**_fixed(stated_commit), "load_average": list(os.getloadavg())}


@cache
def _fixed(stated_commit: str | None) -> dict[str, Any]:
    commit = build_commit(stated_commit)
    changed = None if stated_commit else _git("status", "--porcelain", "--untracked-files=no")
    return {
        "version": build_version(),
        "commit": None if commit == UNKNOWN else commit,
        "dirty": None if changed is None else bool(changed),
        "method": METHOD,
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "distribution": _or_none(lambda: platform.freedesktop_os_release().get("PRETTY_NAME")),
        "cpu": processor_name(),
        "cpu_features": processor_features(),
        "cores": os.cpu_count(),
        "threads_per_core": len(siblings(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "governor": _or_none(lambda: GOVERNOR.read_text().strip()),
        "cpu_megahertz": round(frequency.current) if (frequency := psutil.cpu_freq()) else None,
        "gpus": gpus(),
        "python": sys.version.split()[0],
    }


def gpus() -> list[dict[str, str]]:
    """Name, driver, clocks and limits of each NVIDIA GPU, from NVML; empty where that does not answer."""
    found: list[dict[str, str]] = json.loads(_output(*PROGRAM) or "[]")
    return found


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _or_none(read: Callable[[], str | None]) -> str | None:
    try:
        return read()
    except OSError:
        return None


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


def _git(*arguments: str) -> str | None:
    return _output("git", "-C", str(Path(__file__).resolve().parent), *arguments)


class CoreClaims:
    """The cores of one service's engine, or of what `of` names, claimed while this object is open.

    A claim is a name in Linux's abstract socket space, which goes with its process. Containers share none.
    """

    def __init__(self, cores: Iterable[int], of: str = "engine") -> None:
        self._sockets: list[socket.socket] = []
        self._unknown: OSError | None = None
        self.shared: list[int] = []
        """Those that another one has."""
        for core in cores:
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0launchbound-{of}-core-{core}")
            except OSError as error:
                claim.close()
                if error.errno == errno.EADDRINUSE:
                    self.shared.append(core)
                else:  # as in a sandbox without such sockets: no reason not to serve
                    self._unknown = error
            else:
                self._sockets.append(claim)

    @property
    def held(self) -> bool:
        return not self.shared and self._unknown is None

    @property
    def warning(self) -> str | None:
        if not self.shared:
            unknown = "whether another service's engine runs on the same cores is not known"
            return None if self._unknown is None else f"{unknown}: {self._unknown}"
        cores = ", ".join(map(str, self.shared))
        return (
            f"the engine of another service runs on core {cores} too, and each slows the other down: give "
            "this one other cores by LAUNCHBOUND_ENGINE_CPUS, or half of them by LAUNCHBOUND_CORES=lower"
        )

    def close(self) -> None:
        for claim in self._sockets:
            claim.close()
