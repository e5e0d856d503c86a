"""The processor of this machine as Linux describes it, and which of its cores each process runs on."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal

_CPUINFO = Path("/proc/cpuinfo")
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"

_NAMED_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile")
"""Instruction sets for which libraries have kernels of their own."""

_NUMBERS = {"cpu family": "family", "model": "model", "CPU implementer": "implementer", "CPU part": "part"}
"""What distinguishes generations on x86 and on ARM, by its key in /proc/cpuinfo."""


@cache
def processor_facts() -> dict[str, str]:
    """What /proc/cpuinfo says of the first processor; empty where there is no such file."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return {}
    first = text.partition("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in first)
    return {key.strip(): value.strip() for key, _, value in pairs}


def processor_name() -> str:
    """Its name and the numbers of its generation, such as `AMD EPYC (family 25, model 17)`.

    Virtual machines often give several generations one name: that one is a Zen 4, and family 26 a Zen 5.
    """
    facts = processor_facts()
    name = facts.get("model name") or platform.processor() or f"unknown CPU ({platform.machine()})"
    numbers = [f"{word} {facts[key]}" for key, word in _NUMBERS.items() if key in facts]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def processor_features() -> str | None:
    """Its stepping, instruction sets that matter and a digest of all, such as `stepping 1, avx2, a54ef0c1`.

    A hypervisor may hide instruction sets, and libraries then run other code. None where Linux does not say.
    """
    facts = processor_facts()
    features = (facts.get("flags") or facts.get("Features") or "").split()
    if not features:
        return None
    stepping = [f"stepping {facts['stepping']}"] if "stepping" in facts else []
    named = [name for name in _NAMED_FEATURES if name in features]
    digest = hashlib.sha256(" ".join(sorted(features)).encode()).hexdigest()[:8]
    return ", ".join([*stepping, *named, digest])


def siblings(cpu: int) -> tuple[int, ...]:
    """All hardware threads of the core of `cpu`, itself included; it alone where Linux does not say."""
    try:
        text = Path(_SIBLINGS.format(cpu)).read_text(encoding="utf-8")
    except OSError:
        return (cpu,)
    found: set[int] = {cpu}
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


Share = Literal["all", "lower"]
"""Of a machine's cores: all of them, or the lower half."""


def _usable(available: Iterable[int] | None) -> list[int]:
    return sorted(os.sched_getaffinity(0) if available is None else available)


def share_cpus(share: Share, available: Iterable[int] | None = None) -> list[int]:
    """The cores of a whole service: all that this process may use, or the `lower` half of them.

    By default the engine of another service has the upper half. A single core is shared.
    """
    usable = _usable(available)
    return usable if share == "all" else _halves(usable)[0] or usable


def _halves(usable: list[int]) -> tuple[list[int], list[int]]:
    """The lower and the upper half of the cores, hardware threads together; of one core, its threads."""
    cores = list(dict.fromkeys(tuple(cpu for cpu in siblings(cpu) if cpu in usable) for cpu in usable))
    units = cores if len(cores) > 1 else [(cpu,) for cpu in usable]
    middle = len(units) // 2
    lower, upper = (sorted(cpu for unit in half for cpu in unit) for half in (units[:middle], units[middle:]))
    return lower, upper


def engine_cpus(wanted: list[int] | None, available: Iterable[int] | None = None) -> list[int]:
    """Cores for the engine: `wanted`, else the upper half of those this process may use (of two: the last).

    Raises ValueError, naming the cores there are, where `wanted` holds a core that is not available.
    """
    usable = _usable(available)
    if wanted is None:
        return _halves(usable)[1]
    missing = sorted(set(wanted) - set(usable))
    if missing or not wanted:
        raise ValueError(f"engine_cpus {wanted}: this process may use cores {usable}; choose among these")
    return sorted(set(wanted))


def physical_cores(cpus: Iterable[int]) -> int:
    return len({siblings(cpu) for cpu in cpus})


def front_cpus(
    wanted: list[int] | None, engine: list[int] | None, available: Iterable[int] | None = None
) -> list[int]:
    """Cores for the front: `wanted`, else those that the engine leaves; all where it leaves none."""
    if wanted is not None:
        return wanted
    usable = _usable(available)
    engines = engine_cpus(engine, usable)
    return [core for core in usable if core not in engines] or usable


def pin(cpus: list[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended since it was listed
            os.sched_setaffinity(int(thread), cpus)


@contextmanager
def children_on(cores: Iterable[int]) -> Iterator[None]:
    """Within: this thread may use `cores`, and so may a child that it starts, which inherits its affinity."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
