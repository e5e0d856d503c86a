"""The processor of this machine, as Linux tells it."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")

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
