"""Numbers and findings as text, the same in the page, in Markdown and on the terminal."""

from __future__ import annotations

import math

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.report.comparison import Comparison
from loadtests.report.verdict import Findings, Payback, Summary, Verdict
from service.statistics.boundedness import Crossover
from service.statistics.intervals import Interval

BUSY_NOISE = 1.25
"""Where the baseline differs from itself by this factor, the machine was busy with something else."""


def significant(value: float, digits: int = 3) -> str:
    """`value` to `digits` significant digits, never with an exponent: 0.0312, 4.57, 123, 12,300."""
    if not math.isfinite(value):
        return "∞"
    if value == 0:
        return "0"
    value = float(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, or a dash."""
    return "–" if seconds is None else f"{significant(seconds * 1e3)} ms"


def microseconds(seconds: float | None) -> str:
    """Seconds as microseconds, or a dash."""
    return "–" if seconds is None else f"{significant(seconds * 1e6)} µs"


def times(ratio: float) -> str:
    """A ratio: 2.93×."""
    return f"{significant(ratio)}×"


def span(interval: Interval, scale: float = 1.0) -> str:
    """An interval's ends: 2.81–3.05."""
    return f"{significant(interval.low * scale)}–{significant(interval.high * scale)}"


def listed(items: list[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def compared(comparison: Comparison | None) -> str:
    """'2.93× (2.81–3.05)', or a dash for what others are compared with."""
    if comparison is None:
        return "–"
    return f"{times(comparison.speedup.value)} ({span(comparison.speedup)})"


def payback(value: Payback) -> str:
    """Requests until the warm-up is paid back, or why there are none."""
    if value == "nothing to pay back":
        return "–"
    return value if isinstance(value, str) else f"{value:,}"


def named(summary: Summary) -> str:
    """Its mode, and its effective mode where that differs: 'reduce-overhead (here: compiled-cpp)'."""
    return f"{summary.cell.mode} (here: {summary.runs_as})" if summary.runs_as else summary.cell.mode


def gain(verdict: Verdict) -> str:
    """What the mode to ship gains, in one phrase."""
    if verdict.choice is None:
        return f"fewer than {MINIMUM_ROUNDS} rounds: too few to tell modes apart"
    shipped = verdict.shipped
    if shipped is None or shipped.comparison is None:
        return f"no mode is detectably faster than {BASELINE}"
    return f"{times(shipped.comparison.speedup.value)} the speed of {BASELINE}"


def tie(verdict: Verdict) -> str | None:
    """A sentence on the modes that do not differ from the fastest, if any."""
    choice = verdict.choice
    if choice is None or not choice.tied:
        return None
    tied = [mode for mode in [choice.fastest, *choice.tied] if mode != choice.ship]
    simplest = "the simplest" if choice.ship == BASELINE else f"the simplest that is faster than {BASELINE}"
    return f"{listed(tied)} cannot be told from it; of tied modes, {simplest} is chosen."


def crossing(found: Crossover, upper_estimate: bool) -> str:
    """Where eager turns from launch- to kernel-bound; `upper_estimate`: kernel time is an upper estimate."""
    estimate = "by upper estimate, " if upper_estimate else ""
    match found.where:
        case "at":
            batch = significant(found.batch or 0, 2)
            return f"{estimate}{BASELINE}'s kernels take as long as its dispatch at about batch {batch}"
        case "below":
            where = f"from batch {found.batch:g} on, the smallest here"
            return f"{estimate}{BASELINE}'s kernels outlast its dispatch {where}"
        case "above":
            even = f"even {estimate}" if estimate else ""
            where = f"up to batch {found.batch:g}, the largest here"
            return f"{even}{BASELINE}'s dispatch outlasts its kernels {where}"
    return "where kernels overtake dispatch is unknown: kernel time is not measured here"


def headline(findings: Findings) -> str:
    """The whole answer in a sentence or two."""
    verdicts = findings.main
    if not verdicts:
        return f"No cell of {BASELINE} was measured: there is nothing to compare with."
    if any(verdict.choice is None for verdict in verdicts):
        return f"Undecided: fewer than {MINIMUM_ROUNDS} rounds are too few to tell modes apart."
    by_name: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_name.setdefault(named(verdict.shipped) if verdict.shipped else "", []).append(verdict)
    sentence = "; ".join(_ship(name, group) for name, group in by_name.items())
    return " ".join([f"{sentence[0].upper()}{sentence[1:]}.", *provisional(verdicts)])


def provisional(verdicts: list[Verdict]) -> list[str]:
    """One sentence where the machine was too busy for a reliable answer, else none."""
    cells = [summary for verdict in verdicts for summary in verdict.summaries]
    disturbed = sum(s.disturbed for s in cells)
    noise = max(verdict.noise for verdict in verdicts)
    if 2 * disturbed <= len(cells) and noise < BUSY_NOISE:
        return []
    found = f"{disturbed} of {len(cells)} cells were disturbed, and {BASELINE} differs from itself by up to"
    return [f"Provisional: {found} {times(noise)}; measure again on a quiet machine."]


def _ship(name: str, verdicts: list[Verdict]) -> str:
    at = f"at batch {listed([str(v.batch_size) for v in verdicts])}"
    if all(verdict.shipped is verdict.baseline for verdict in verdicts):
        return f"keep {name} {at}: nothing is detectably faster"
    gains = [times(s.comparison.speedup.value) for v in verdicts if (s := v.shipped) and s.comparison]
    return f"ship {name} {at} ({listed(gains)} {BASELINE})"
