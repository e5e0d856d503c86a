"""Findings as sentences, the same in the page, in Markdown and on the terminal."""

from __future__ import annotations

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.report.formatting import level, listed, percentages, span, times
from loadtests.report.phases import PhaseMeans
from loadtests.report.summaries import Summary, Verdict
from loadtests.report.verdict import Findings
from service.statistics.choice import EQUIVALENT, Choice, Comparison
from service.statistics.intervals import Interval

BUSY_NOISE = 1.25
"""Where the baseline differs from itself by this factor, the machine was busy with something else."""


def compared(comparison: Comparison | None) -> str:
    """'2.93× (2.81–3.05)', or a dash for what others are compared with."""
    if comparison is None:
        return "–"
    return f"{times(comparison.speedup.value)} ({span(comparison.speedup)})"


def named(summary: Summary, device: str) -> str:
    """Its effective mode first, where that differs: "compiled-cpp, the CPU's reduce-overhead"."""
    origin = stands_for(summary, device)
    return f"{short_name(summary)}, {origin}" if origin else summary.cell.mode


def stands_for(summary: Summary, device: str) -> str | None:
    """Of which mode its effective mode takes the place: "the CPU's reduce-overhead"; None: its own."""
    if summary.runs_as is None:
        return None
    owner = "the CPU's" if device == "cpu" else "in place of"
    return f"{owner} {summary.cell.mode}"


def short_name(summary: Summary) -> str:
    """The effective mode, where that is known, else the mode."""
    return summary.effective or summary.cell.mode


def gain(verdict: Verdict) -> str:
    """What the mode to ship gains, in one phrase."""
    if verdict.choice is None:
        return f"fewer than {MINIMUM_ROUNDS} rounds: too few to tell modes apart"
    shipped = verdict.shipped
    if shipped is None or shipped.comparison is None:
        return f"no mode is detectably faster than {BASELINE}"
    return f"{times(shipped.comparison.speedup.value)} the speed of {BASELINE}"


def tie(verdict: Verdict, confidence: float) -> str | None:
    """A sentence on the modes that cannot be told from the fastest, and on what the simpler one gives up."""
    choice = verdict.choice
    if choice is None or not choice.tied:
        return None
    tied = [short_name(verdict.of(mode)) for mode in [choice.ship, *tied_with(verdict)]]
    sentence = f"{listed(tied)} tie at batch {verdict.batch_size}"
    simplest = "the simplest of them" + ("" if choice.ship == BASELINE else f" that beats {BASELINE}")
    if choice.given_up is None:
        reach = f"another may be faster by at most {_most(choice)} ({level(confidence)})"
        return f"{sentence}; {tied[0]}, {simplest}, is the fastest here, and {reach}."
    given_up, fastest = choice.given_up, short_name(verdict.of(choice.fastest))
    equal = ", within what counts as equal" if max(given_up.high, 1 / given_up.low) <= EQUIVALENT else ""
    price = f"gives up {percentages(given_up, confidence)} on {fastest}{equal}"
    return f"{sentence}: shipping {tied[0]}, {simplest}, {price}."


def limit(decode: PhaseMeans) -> str | None:
    """On a GPU the class of decode's kernel share, on a CPU its headroom: 'headroom 2.61× (2.20–3.31)'."""
    room = decode.headroom
    return decode.bound if room is None else f"headroom {times(room.value)} ({span(room)})"


def tied_with(verdict: Verdict) -> list[str]:
    """The modes that are tied with the one to ship."""
    choice = verdict.choice
    if choice is None:
        return []
    return [mode for mode in dict.fromkeys([choice.fastest, *choice.tied]) if mode != choice.ship]


def headline(findings: Findings) -> str:
    """The whole answer in a sentence or two; its first words are the effective mode's."""
    verdicts = findings.main
    if not verdicts:
        return f"No cell of {BASELINE} was measured: there is nothing to compare with."
    if any(verdict.choice is None for verdict in verdicts):
        return f"Undecided: fewer than {MINIMUM_ROUNDS} rounds are too few to tell modes apart."
    by_answer: dict[tuple[str, tuple[str, ...]], list[Verdict]] = {}
    for verdict in verdicts:
        answer = (verdict.choice.ship if verdict.choice else "", tuple(sorted(tied_with(verdict))))
        by_answer.setdefault(answer, []).append(verdict)
    parts = "; ".join(_answer(group, findings) for group in by_answer.values())
    return " ".join([f"{parts}.", *provisional(verdicts)])


def _answer(verdicts: list[Verdict], findings: Findings) -> str:
    """One mode to ship, or one tie, and the batches where that is the answer."""
    at = f"at batch {listed([str(v.batch_size) for v in verdicts])}"
    shipped = verdicts[0].shipped
    if shipped is None:
        return f"undecided {at}"
    tied = [short_name(verdicts[0].of(mode)) for mode in tied_with(verdicts[0])]
    with_ties = f", tied with {listed(tied)}," if tied else ""
    name = named(shipped, findings.results.device)
    comma = "," if shipped.runs_as and not with_ties else ""
    if shipped.is_baseline:
        return f"{name}{with_ties} stays {at}: nothing is detectably faster"
    gains = [times(s.comparison.speedup.value) for v in verdicts if (s := v.shipped) and s.comparison]
    price = _price(verdicts, findings.confidence)
    return f"{name}{with_ties}{comma} is the mode to ship {at} ({listed(gains)} {BASELINE}{price})"


def _price(verdicts: list[Verdict], confidence: float) -> str:
    """What shipping the simplest of a tie gives up at most: the highest ends of the intervals."""
    told = [_most(choice) for v in verdicts if (choice := v.choice) and choice.at_most is not None]
    return f"; by {level(confidence)} intervals it gives up at most {listed(told)}" if told else ""


def _most(choice: Choice) -> str:
    return f"{100 * ((choice.at_most or 1.0) - 1):.1f} %"


def provisional(verdicts: list[Verdict]) -> list[str]:
    """One sentence where the machine was too busy for a reliable answer, else none."""
    cells = [summary for verdict in verdicts for summary in verdict.summaries]
    disturbed = sum(s.disturbed for s in cells)
    noise = max((apart(v.noise) for v in verdicts if v.noise), default=1.0)
    if 2 * disturbed <= len(cells) and noise < BUSY_NOISE:
        return []
    found = f"{disturbed} of {len(cells)} cells were disturbed, and {BASELINE} differs from itself by up to"
    return [f"Provisional: {found} {times(noise)}; measure again on a quiet machine."]


def apart(ratio: Interval) -> float:
    """How far a ratio's interval reaches from 1, as a factor."""
    return max(ratio.high, 1 / ratio.low) if ratio.low > 0 else float("inf")
