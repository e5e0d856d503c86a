"""What Linux still allows this process, where it limits its control group (cgroup v2): containers, slices."""

from __future__ import annotations

from math import inf
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def allowed_cpus() -> float:
    """How many CPUs' time the group may use, whatever cores it may run on; infinite without a limit."""
    found = inf
    for group in _groups():
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if quota.isdigit():
            found = min(found, int(quota) / int(period))
    return found


def free_memory_bytes() -> float:
    """How much memory the group may still take; infinite without a limit.

    What it has cached of files counts as taken.
    """
    found = inf
    for group in _groups():
        most, now = _read(group / "memory.max"), _read(group / "memory.current")
        if most.isdigit() and now.isdigit():
            found = min(found, max(0, int(most) - int(now)))
    return found


def _groups() -> list[Path]:
    """The group of this process and those around it; in a container, what it sees of them."""
    member = next((line[3:] for line in _read(MEMBERSHIP).splitlines() if line.startswith("0::")), "/")
    own = ROOT / member.strip("/")
    return [own, *(around for around in own.parents if around.is_relative_to(ROOT))]


def _read(file: Path) -> str:
    """The file's text; empty where there is none, as in the outermost group or with cgroup v1."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
