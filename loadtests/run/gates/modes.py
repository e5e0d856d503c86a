"""Gates of the modes: they compute what eager computes, and ran as what they were declared to be."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from loadtests.plan.cells import BASELINE
from loadtests.run.decisions import Latencies, group_name
from loadtests.run.gates.gate import Gate, some
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun
from service.statistics.choice import EQUIVALENT, compare
from service.statistics.intervals import Interval


def parity(run: SweepRun) -> Gate:
    """Every mode was compared with eager at warm-up, and computes the same."""
    verdicts = {mode: run.mode(mode).get("parity") for mode in run.plan.modes}
    unknown = [mode for mode, verdict in verdicts.items() if verdict is None]
    out = [mode for mode, verdict in verdicts.items() if verdict is not None and not verdict["passed"]]
    detail = "every mode computes what eager computes"
    if out or unknown:
        parts = ([f"out of parity: {', '.join(out)}"] if out else []) + (
            [f"not checked: {', '.join(unknown)}"] if unknown else []
        )
        detail = "; ".join(parts)
    return Gate(name="parity", passed=not out and not unknown, detail=detail)


def fallbacks(rows: Sequence[RequestRow], run: SweepRun) -> Gate:
    """Requests that ran as something else than their mode had declared at warm-up."""
    declared = {mode: run.mode(mode).get("effective") for mode in run.plan.modes}
    other = Counter(
        f"{row.mode} ran as {row.effective_mode}"
        for row in rows
        if row.ok and row.effective_mode != declared.get(row.mode)
    )
    detail = (
        "; ".join(f"{count} × {what}" for what, count in other.items()) or "every request ran as declared"
    )
    return Gate(name="fallbacks", passed=not other, detail=detail, warning=True)


def texts(rows: Sequence[RequestRow], run: SweepRun) -> Gate:
    """In every round all modes complete the same prompts with the same texts; in float32 they have to."""
    name = "same texts in all modes"
    same_prompts: dict[tuple[int, str, int, int, int], list[RequestRow]] = defaultdict(list)
    for row in rows:
        if row.counts and row.text_digest is not None and row.index is not None:
            key = (row.batch_size, row.prompt_set, row.new_tokens, row.round, row.index)
            same_prompts[key].append(row)
    sets = [alike for alike in same_prompts.values() if len(alike) > 1]
    if not sets:
        return Gate(name=name, passed=None, detail="no prompts with texts of two modes")
    odd = [_odd_ones(alike) for alike in sets]
    wrong = sum(map(bool, odd))
    detail = f"{len(sets) - wrong} of {len(sets)} sets of prompts"
    if wrong:
        counts = Counter(cell for cells in odd for cell in cells).most_common()
        detail += f"; different: {some([f'{cell} ({count} ×)' for cell, count in counts])}"
    warning = run.engine.get("dtype") != "float32"
    return Gate(name=name, passed=not wrong, detail=detail, warning=warning)


def _odd_ones(rows: Sequence[RequestRow]) -> list[str]:
    """The cells whose texts are not the baseline's or, without it, those of most."""
    usual = Counter(row.text_digest for row in rows).most_common(1)[0][0]
    reference = next((row.text_digest for row in rows if row.mode == BASELINE), usual)
    return [row.cell for row in rows if row.text_digest != reference]


def control(rows: Sequence[RequestRow], run: SweepRun) -> Gate:
    """The baseline against its control cell, the same work twice: their interval reaches within 2 % of 1."""
    name = f"{BASELINE} against itself"
    ratios = _control_ratios(rows, run)
    if not ratios:
        return Gate(name=name, passed=None, detail="no control cell was measured")
    off = {group: r for group, r in ratios.items() if r.low > EQUIVALENT or r.high < 1 / EQUIVALENT}
    worst = max(ratios, key=lambda group: abs(math.log(ratios[group].value)))
    shown = [f"{group} ×{r.value:.3f} ({r.low:.3f} to {r.high:.3f})" for group, r in off.items()]
    detail = f"differs in {some(shown)}" if off else f"at most ×{ratios[worst].value:.3f} ({worst})"
    return Gate(name=name, passed=not off, detail=detail, warning=True)


def _control_ratios(rows: Sequence[RequestRow], run: SweepRun) -> dict[str, Interval]:
    """By the name of its group, the paired ratio of the baseline's cell and its control."""
    latencies = Latencies.of(rows)
    cells = {(cell.group, cell.control): cell for cell in run.plan.cells if cell.mode == BASELINE}
    ratios = {}
    for (group, is_control), cell in cells.items():
        first = cells.get((group, False))
        if not is_control or first is None or cell.load is not None:
            continue
        medians = latencies.medians(first.name), latencies.medians(cell.name)
        if medians[0].keys() & medians[1].keys():
            ratios[group_name(group)] = compare(*medians, run.plan.confidence).speedup
    return ratios
