"""Gates of the modes: they compute what eager computes, and ran as what they were declared to be."""

from __future__ import annotations

import math
from collections import Counter

from loadtests.plan.cells import BASELINE
from loadtests.run.decisions import Latencies, group_name
from loadtests.run.gates.gate import Gate, some
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun
from service.protocol.modes import AUTO
from service.statistics.choice import EQUIVALENT, compare
from service.statistics.intervals import Interval


def parity(run: SweepRun) -> Gate:
    """Every mode was compared with eager at warm-up, and computes the same; of `auto` all that it can run."""
    verdicts = {mode: run.mode(mode).get("parity") for mode in _run_modes(run)}
    unknown = [mode for mode, verdict in verdicts.items() if verdict is None]
    out = [mode for mode, verdict in verdicts.items() if verdict is not None and not verdict["passed"]]
    detail = "every mode computes what eager computes"
    if out or unknown:
        parts = ([f"out of parity: {', '.join(out)}"] if out else []) + (
            [f"not checked: {', '.join(unknown)}"] if unknown else []
        )
        detail = "; ".join(parts)
    return Gate(name="parity", passed=not out and not unknown, detail=detail)


def _run_modes(run: SweepRun) -> list[str]:
    """The modes in which requests of the plan can run: `auto` picks among those that are ready."""
    if AUTO not in run.plan.modes:
        return run.plan.modes
    ready = [status["mode"] for status in run.modes or run.modes_before if status["state"] == "ready"]
    return list(dict.fromkeys([*run.plan.ladder_modes, *ready]))


class Fallbacks:
    """Requests that ran as something else than their mode, or that which `auto` picked, had declared."""

    def __init__(self) -> None:
        self._ran = Counter[tuple[str, str | None]]()

    def add(self, row: RequestRow) -> None:
        """Take in any row."""
        if row.ok:
            self._ran[row.ran_mode, row.effective_mode] += 1

    def gate(self, run: SweepRun) -> Gate:
        """How many, and as what."""
        declared = {mode: run.mode(mode).get("effective") for mode in _run_modes(run)}
        other = [
            f"{count} × {mode} ran as {effective}"
            for (mode, effective), count in self._ran.items()
            if effective != declared.get(mode)
        ]
        detail = "; ".join(other) or "every request ran as declared"
        return Gate(name="fallbacks", passed=not other, detail=detail, warning=True)


def control(latencies: Latencies, run: SweepRun) -> Gate:
    """The baseline against its control cell, the same work twice: their interval reaches within 2 % of 1."""
    name = f"{BASELINE} against itself"
    ratios = _control_ratios(latencies, run)
    if not ratios:
        return Gate(name=name, passed=None, detail="no control cell was measured")
    off = {group: r for group, r in ratios.items() if r.low > EQUIVALENT or r.high < 1 / EQUIVALENT}
    worst = max(ratios, key=lambda group: abs(math.log(ratios[group].value)))
    shown = [f"{group} ×{r.value:.3f} ({r.low:.3f} to {r.high:.3f})" for group, r in off.items()]
    detail = f"differs in {some(shown)}" if off else f"at most ×{ratios[worst].value:.3f} ({worst})"
    return Gate(name=name, passed=not off, detail=detail, warning=True)


def _control_ratios(latencies: Latencies, run: SweepRun) -> dict[str, Interval]:
    """By the name of its group, the paired ratio of the baseline's cell and its control."""
    cells = {(cell.group, cell.control): cell for cell in run.plan.cells if cell.mode == BASELINE}
    ratios = {}
    for (group, is_control), cell in cells.items():
        first = cells.get((group, False))
        if not is_control or first is None or cell.open_loop:
            continue
        medians = latencies.medians(first.name), latencies.medians(cell.name)
        if medians[0].keys() & medians[1].keys():
            ratios[group_name(group)] = compare(*medians, run.plan.confidence).speedup
    return ratios
