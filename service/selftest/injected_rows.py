"""The rows of injected work: how far dispatch and kernel moved, as shares of the work that was added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from service.selftest.results import CheckResult, interval_result
from service.statistics.intervals import median_interval

Part = Literal["dispatch", "kernel"]

MOVED_KERNEL = "a kernel 8 times longer"
MOVED_WORK = "more host work per step"
SHARE = 0.10


def judge_kernel(found: Mapping[tuple[str, str], list[float]]) -> list[CheckResult]:
    """Per mode: kernel moves by what was added, dispatch does not."""
    return _rows(MOVED_KERNEL, "kernel", found)


def judge_host(found: Mapping[tuple[str, str], list[float]]) -> list[CheckResult]:
    """Per mode: dispatch moves by what was added, kernel does not."""
    return _rows(MOVED_WORK, "dispatch", found)


def bounds(what: str, moved: Part) -> tuple[tuple[str, str], ...]:
    """Name and bound of the row of either part."""
    other: Part = "dispatch" if moved == "kernel" else "kernel"
    return (f"{what}: {moved}", f"moves by it ± {SHARE:.0%}"), (
        f"{what}: {other}",
        f"moves by < {SHARE:.0%} of it",
    )


def shifts(found: Mapping[tuple[str, str], list[float]], mode: str) -> dict[Part, list[float]]:
    """Per round, how far either part of the step moved, as shares of what was added."""
    parts: tuple[Part, ...] = ("dispatch", "kernel")
    return {
        part: [
            (more - plain) / added
            for plain, more, added in zip(
                found[mode, f"plain_{part}"], found[mode, f"more_{part}"], found[mode, "added"], strict=True
            )
        ]
        for part in parts
    }


def _rows(what: str, moved: Part, found: Mapping[tuple[str, str], list[float]]) -> list[CheckResult]:
    rows = []
    for mode in dict.fromkeys(mode for mode, _ in found):
        shares = shifts(found, mode)
        for part, (name, bound) in zip(_parts(moved), bounds(what, moved), strict=True):
            centre = 1.0 if part == moved else 0.0
            rows.append(
                interval_result(
                    f"{name}, {mode}",
                    bound,
                    median_interval(shares[part]),
                    least=centre - SHARE,
                    most=centre + SHARE,
                    unit="of what was added",
                    numbers={"shift": shares[part], "added_seconds": found[mode, "added"]},
                )
            )
    return rows


def _parts(moved: Part) -> tuple[Part, Part]:
    return ("kernel", "dispatch") if moved == "kernel" else ("dispatch", "kernel")
