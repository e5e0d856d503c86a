"""What this process is and where it runs, for whoever measures it from elsewhere: build, machine, load."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from service.front.build import UNKNOWN, build_commit, build_dirty, build_version
from service.protocol.processor import processor_features, processor_name, siblings
from service.statistics.method import METHOD

_NVIDIA_FIELDS = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,persistence_mode"


def machine(stated_commit: str | None = None) -> dict[str, Any]:
    """The service as it says itself in GET /v1/modes; what cannot be read is None.

    `stated_commit` is that of an image. Read once per process, but for the load. The first call runs git and
    nvidia-smi, which takes up to seconds.
    """
    return {**_fixed(stated_commit), "load_average": list(os.getloadavg())}


@cache
def _fixed(stated_commit: str | None) -> dict[str, Any]:
    commit = build_commit(stated_commit)
    return {
        "version": build_version(),
        "commit": None if commit == UNKNOWN else commit,
        "dirty": None if stated_commit else build_dirty(),
        "method": METHOD,
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "distribution": _distribution(),
        "cpu": processor_name(),
        "cpu_features": processor_features(),
        "cores": os.cpu_count(),
        "threads_per_core": len(siblings(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "cpu_megahertz": round(frequency.current) if (frequency := psutil.cpu_freq()) else None,
        "gpus": gpus(),
        "python": sys.version.split()[0],
    }


def gpus() -> list[dict[str, str]]:
    """Name, driver, clocks and limits of each NVIDIA GPU, from nvidia-smi; empty without it."""
    command = ["nvidia-smi", f"--query-gpu={_NVIDIA_FIELDS}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    names = _NVIDIA_FIELDS.split(",")
    lines = done.stdout.strip().splitlines()
    return [dict(zip(names, map(str.strip, line.split(",")), strict=False)) for line in lines]


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
