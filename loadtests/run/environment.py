"""The environment of a measurement: the machine, its load, the commit."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
_NVIDIA_FIELDS = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,persistence_mode"


def environment() -> dict[str, Any]:
    """This machine as it is now; what cannot be read is None."""
    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "distribution": _distribution(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": sorted(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "cpu_megahertz": round(frequency.current) if (frequency := psutil.cpu_freq()) else None,
        "load_average": list(os.getloadavg()),
        "gpus": gpus(),
        "python": sys.version.split()[0],
        **git_state(),
    }


def cpu_model() -> str:
    """The processor's name."""
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def gpus() -> list[dict[str, str]]:
    """Name, driver, clocks and limits of each NVIDIA GPU, from nvidia-smi; empty without it."""
    output = _run("nvidia-smi", f"--query-gpu={_NVIDIA_FIELDS}", "--format=csv,noheader")
    names = _NVIDIA_FIELDS.split(",")
    return [
        dict(zip(names, map(str.strip, line.split(",")), strict=False))
        for line in (output or "").splitlines()
    ]


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


def _distribution() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _run(*command: str) -> str | None:
    """What `command` prints, or None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
