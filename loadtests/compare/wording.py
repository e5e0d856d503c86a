"""A comparison as sentences, the same on the terminal, in Markdown and in JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadtests.compare.cells import CellChange
from loadtests.compare.likeness import Contrast
from loadtests.compare.side import Side
from loadtests.compare.verdict import BuildComparison
from loadtests.plan.cells import BASELINE
from loadtests.report.formatting import level, listed, significant
from service.statistics.builds import LATENCY_SCATTER, POWER, RATIO_SCATTER
from service.statistics.intervals import Interval

SHOWN = 3
"""So many cells are named in a sentence."""


def percent(ratio: float) -> str:
    """A ratio as a signed change: +5.2 %, −1.0 %."""
    return f"{100 * (ratio - 1):+.1f} %".replace("-", "−").replace("+0.0", "0.0").replace("−0.0", "0.0")


def change(interval: Interval | None) -> str:
    """'+5.2 % [+3.1, +7.4]', or a dash."""
    if interval is None:
        return "–"
    low, high = (percent(end).removesuffix(" %") for end in (interval.low, interval.high))
    return f"{percent(interval.value)} [{low}, {high}]"


def headline(found: BuildComparison) -> str:
    """The verdict first, then the cells that it rests on."""
    parts = [_decided(found)] if found.decision else []
    named = [
        f"{len(cells)} of {len(found.changes)} cells {word}: {_named(found, cells)}"
        for word in ("slower", "faster")
        if (cells := found.with_word(word))
    ]
    parts += named or [f"no detectable difference in any of {len(found.changes)} cells ({_could(found)})"]
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _decided(found: BuildComparison) -> str:
    limit = f"{significant(100 * (found.allowed or 0.0))} %"
    return {
        "slower": f"slower by more than {limit}, beyond doubt",
        "not slower": f"not slower by more than {limit} in any cell",
        "undecided": f"undecided whether it is slower by more than {limit}",
    }[found.decision or "undecided"]


def _could(found: BuildComparison) -> str:
    """The smallest slow-downs that cells could have shown: 'could have shown +4.1 to +9.8 %'."""
    smallest = [one.latency.smallest_detectable(found.confidence) for one in found.changes]
    low, high = percent(min(smallest)), percent(max(smallest))
    return f"could have shown {low.removesuffix(' %')} to {high}"


def _named(found: BuildComparison, cells: list[CellChange]) -> str:
    worst = sorted(cells, key=lambda one: -abs(one.latency.log_ratio))
    names = [f"{one.cell.name} {change(found.change(one))}" for one in worst[:SHOWN]]
    more = len(cells) - SHOWN
    return "; ".join(names) + (f"; and {more} more" if more > 0 else "")


def sentences(found: BuildComparison) -> Iterator[str]:
    """What a reader has to know of the numbers: how they were made and what they could not have shown."""
    if found.forced:
        yield f"FORCED: these are not alike, and what follows mixes it all: {_told(found.forced)}."
    yield (
        f"Compared: {_side(found.before)} with {_side(found.after)}. "
        f"Differs: {_told(found.said) or 'nothing that is recorded'}."
    )
    yield from _shared(found)
    yield _unit(found)
    yield (
        f"“Could show” is the smallest slow-down that {100 * POWER:.0f} % of such comparisons find. Each "
        f"interval is at {level(found.confidence)}, so that all {len(found.changes)} hold together in 95 % "
        "(Bonferroni)."
    )
    if found.decision == "undecided":
        yield "To decide it, sweep both builds in turn, several times each; see docs/sweeps.md."
    if found.left_out:
        names = [f"{name} ({why})" for name, why in found.left_out.items()]
        yield f"Left out: {'; '.join(names)}."


def _told(contrasts: Sequence[Contrast]) -> str:
    return "; ".join(map(str, contrasts))


def _side(side: Side) -> str:
    count = len(side.sweeps)
    return f"{side.path} ({count} sweep{'s' if count > 1 else ''})"


def _shared(found: BuildComparison) -> Iterator[str]:
    """Where all modes moved alike: it is the machine, or code that they share."""
    moved = [one for one in found.changes if found.word(one) != "no detectable difference"]
    others = [one for one in moved if one.relative is not None]
    if others and all(found.relative_word(one) == "no detectable difference" for one in others):
        yield (
            f"Against {BASELINE} of its own sweep no mode has moved detectably: what changed is shared by "
            "all modes, the machine or the code around the step."
        )


def _unit(found: BuildComparison) -> str:
    if found.unit == "pairs of sweeps":
        count = len(found.before.sweeps)
        return f"Intervals rest on {count} pairs of sweeps in turn: Student's t on their differences."
    if found.unit == "sweeps":
        return (
            "Intervals rest on whole sweeps: two-sample t, their variance pooled over both builds. The "
            "builds were not swept in turn, so a machine that has changed between them reads as a difference."
        )
    if found.stated is not None:
        taken = f"{significant(100 * found.stated.deviation)} %, as stated"
    else:
        scatters = (LATENCY_SCATTER, RATIO_SCATTER)
        latency, ratio = (f"{significant(100 * one.deviation, 2)} %" for one in scatters)
        taken = f"{latency} ({ratio} against {BASELINE}), as on the reference machine: yours may differ"
    return (
        "One sweep of each build: intervals rest on rounds (Welch) and on how much sweeps of one build are "
        f"taken to scatter, {taken}. Several sweeps of each, in turn, measure it instead."
    )


def why(found: BuildComparison, one: CellChange) -> str:
    """Where a cell's change went, largest first: 'dispatch +0.31 ms, kernel −0.05 ms'; parts are means."""
    known = {part: value for part, value in one.parts.items() if value is not None}
    ranked = sorted(known.items(), key=lambda item: -abs(item[1]))
    told = [f"{part.replace('_', ' ')} {_signed(value)}" for part, value in ranked if _counts(value, one)]
    return listed(told[:SHOWN]) if found.word(one) != "no detectable difference" else ""


def _counts(seconds: float, one: CellChange) -> bool:
    """Whether a part is a tenth of the change or more."""
    return abs(seconds) >= 0.1 * abs(one.after_seconds - one.before_seconds) > 0


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '−'}{significant(abs(seconds) * 1e3)} ms"
