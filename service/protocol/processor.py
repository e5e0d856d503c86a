"""The processor of this machine, as Linux tells it."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"

_NAMED_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile")
"""Instruction sets for which libraries have kernels of their own."""

_NUMBERS = {
    "cpu family": "family",
    "model": "model",
    "CPU implementer": "implementer",
    "CPU part": "part",
}
"""What tells generations apart on x86 and on ARM, by its key in /proc/cpuinfo."""


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

    Tells apart what has one name: a hypervisor may hide instruction sets, and libraries then run other code.
    None where Linux does not say.
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
