"""Findings in words, the same in the page, in Markdown and on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.report.findings import PLAIN, Findings
from loadtests.report.formatting import (
    counted,
    in_seconds,
    level,
    listed,
    milliseconds,
    percentages,
    significant,
    span,
    times,
)
from loadtests.report.summaries import REMEDY, PhaseMeans, Requests, Summary, Verdict
from service.records import SampleCounts
from service.statistics.boundedness import PROVED, Crossover, CrossoverSpan, counting_error
from service.statistics.choice import EQUIVALENT, Choice, Comparison
from service.statistics.intervals import Interval
from service.statistics.knee import BoundedEstimate

BUSY_NOISE = 1.25
"""Where the baseline differs from itself by this factor, the machine was busy with something else."""

MANY_FAULTS = 10
"""Page faults per request that are worth a word."""


def compared(comparison: Comparison | None) -> str:
    """'2.93× (2.81–3.05)', or a dash for what others are compared with."""
    return "–" if comparison is None else ratio(comparison.speedup)


def ratio(found: Interval) -> str:
    """'2.93× (2.81–3.05)'."""
    return f"{times(found.value)} ({span(found)})"


def short_name(summary: Summary) -> str:
    """The effective mode, where that is known, else the mode."""
    return summary.effective or summary.cell.mode


def stands_for(summary: Summary, device: str) -> str | None:
    """Of which mode its effective mode takes the place: "the CPU's reduce-overhead"; None: its own."""
    if summary.runs_as is None:
        return None
    owner = "the CPU's" if device == "cpu" else "in place of"
    return f"{owner} {summary.cell.mode}"


def named(summary: Summary, device: str) -> str:
    """Its effective mode first, where that differs: "compiled-cpp, the CPU's reduce-overhead"."""
    return ", ".join(filter(None, [short_name(summary), stands_for(summary, device)]))


def tied_with(verdict: Verdict) -> list[str]:
    """The modes that are tied with the one to ship."""
    choice = verdict.choice
    if choice is None:
        return []
    return [mode for mode in dict.fromkeys([choice.fastest, *choice.tied]) if mode != choice.ship]


# The answer.


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
    assert shipped is not None
    tied = [short_name(verdicts[0].of(mode)) for mode in tied_with(verdicts[0])]
    with_ties = f", tied with {listed(tied)}," if tied else ""
    name = named(shipped, findings.results.device)
    comma = "," if shipped.runs_as and not with_ties else ""
    if shipped.is_baseline:
        return f"{name}{with_ties} stays {at}: nothing is detectably faster"
    gains = [times(s.comparison.speedup.value) for v in verdicts if (s := v.shipped) and s.comparison]
    told = [_most(choice) for v in verdicts if (choice := v.choice) and choice.at_most is not None]
    price = f"; by {level(findings.confidence)} intervals it gives up at most {listed(told)}" if told else ""
    return f"{name}{with_ties}{comma} is the mode to ship {at} ({listed(gains)} {BASELINE}{price})"


def _most(choice: Choice) -> str:
    return f"{100 * ((choice.at_most or 1.0) - 1):.1f} %"


def provisional(verdicts: list[Verdict]) -> list[str]:
    """One sentence where the machine was too busy for a reliable answer, else none."""
    cells = [summary for verdict in verdicts for summary in verdict.summaries]
    disturbed = sum(s.disturbed for s in cells)
    noise = max((_apart(v.noise) for v in verdicts if v.noise), default=1.0)
    if 2 * disturbed <= len(cells) and noise < BUSY_NOISE:
        return []
    found = f"{disturbed} of {len(cells)} cells were disturbed, and {BASELINE} differs from itself by up to"
    return [f"Provisional: {found} {times(noise)}; measure again on a quiet machine."]


def _apart(noise: Interval) -> float:
    """How far a ratio's interval reaches from 1, as a factor."""
    return max(noise.high, 1 / noise.low) if noise.low > 0 else float("inf")


def gain(verdict: Verdict) -> str:
    """What the mode to ship gains, in one phrase."""
    if verdict.choice is None:
        return f"fewer than {MINIMUM_ROUNDS} rounds: too few to tell modes apart"
    shipped = verdict.shipped
    if shipped is None or shipped.comparison is None:
        return f"no mode is detectably faster than {BASELINE}"
    return f"{times(shipped.comparison.speedup.value)} the speed of {BASELINE}"


def tie(verdict: Verdict, confidence: float) -> str | None:
    """Which modes cannot be told from the one to ship, and what it gives up at most; None without any."""
    choice = verdict.choice
    if choice is None or not choice.tied:
        return None
    tied = f"tied with {listed([short_name(verdict.of(mode)) for mode in tied_with(verdict)])}"
    given_up = choice.given_up
    if given_up is None:
        return f"{tied}; another may be faster by at most {_most(choice)} ({level(confidence)})"
    equal = ", which counts as equal" if max(given_up.high, 1 / given_up.low) <= EQUIVALENT else ""
    fastest = short_name(verdict.of(choice.fastest))
    return f"{tied}; as the simplest it gives up {percentages(given_up, confidence)} on {fastest}{equal}"


# Why.


def saved(verdict: Verdict) -> list[str]:
    """How the mean times of the baseline change in the mode to ship: '2.00 → 1.00 ms dispatch'.

    None where it is the baseline. Kernel times that the split does not tell apart are called that.
    """
    base, shipped = verdict.baseline, verdict.shipped
    if shipped is None or shipped is base:
        return []
    parts = [(part, base.parts[part], shipped.parts[part]) for part in ("dispatch", "kernel")]
    told = [
        f"{_change(before, after)} {part}" for part, before, after in parts if None not in (before, after)
    ]
    if told and not _resolved(base, shipped):
        told[-1] += " (the split does not resolve this difference)"
    faults = [typical_faults(summary) for summary in (base, shipped)]
    if None not in faults and (faults[0] or 0) - (faults[1] or 0) >= MANY_FAULTS:
        told.append(f"{(faults[0] or 0) - (faults[1] or 0):,.0f} page faults fewer")
    return [f"{_change(base.mean_seconds, shipped.mean_seconds)} in all", *told]


def _change(before: float | None, after: float | None) -> str:
    return f"{significant(1e3 * (before or 0.0))} → {milliseconds(after)}"


def _resolved(base: Summary, shipped: Summary) -> bool:
    """Whether the two kernel times differ by more than their intervals; without intervals nothing says no."""
    before, after = _kernel_ends(base), _kernel_ends(shipped)
    if before is None or after is None:
        return True
    return before[0] > after[1] or after[0] > before[1]


def _kernel_ends(summary: Summary) -> tuple[float, float] | None:
    """The least and the most kernel seconds per request that the intervals of dispatch leave."""
    ends = [phase.kernel_ends for phase in summary.phases]
    if None in ends:
        return None
    return sum(end[0] for end in ends if end), sum(end[1] for end in ends if end)


def typical_faults(summary: Summary) -> float | None:
    """Minor page faults of a typical request, of both phases; None where they were not recorded.

    A median: what a single request had is no reason for a mean.
    """
    counts = [phase.typical_faults for phase in summary.phases if phase.typical_faults is not None]
    return sum(counts) if counts else None


def limit(decode: PhaseMeans) -> str | None:
    """On a GPU the class of decode's kernel share, on a CPU its headroom: 'headroom 2.61× (2.20–3.31)'."""
    room = decode.headroom
    return decode.bound if room is None else f"headroom {ratio(room)}"


def headroom(verdict: Verdict) -> str | None:
    """How much faster a step of the best mode without a compiler would be without its dispatch, and what the
    mode to ship gets; None on a GPU.
    """
    plain = next((one for one in verdict.modes if one.cell.mode == PLAIN), verdict.baseline)
    room, shipped = plain.decode.headroom, verdict.shipped
    if room is None:
        return None
    told = f"{plain.cell.mode} {ratio(room)}, dispatch {100 * (1 - 1 / room.value):.0f} % of its step"
    before, own = plain.decode.step_wall_seconds, shipped.decode.step_wall_seconds if shipped else None
    if shipped and before and own and own < before:
        told += f"; {short_name(shipped)} gets {times(before / own)}"
    return told


def crossing(found: CrossoverSpan) -> str:
    """Where the baseline's kernels take as long as its dispatch, saying no more than was measured."""
    if found.typical.where == "unknown":
        return "Crossover unknown: kernel time is not measured here."
    ends = "interval unknown" if found.earliest.where == "unknown" else _crossing_ends(found)
    return f"In decode {BASELINE}'s kernels take as long as its dispatch {_at(found.typical)} ({ends})."


def _crossing_ends(found: CrossoverSpan) -> str:
    early, late = _at(found.earliest), _at(found.latest)
    return f"interval: {early}" if early == late else f"interval: {early} to {late}"


def _at(found: Crossover) -> str:
    if found.where == "several":
        return "at several batches"
    batch = found.batch or 0.0
    return f"{found.where} batch {significant(batch, 2) if found.where == 'at' else f'{batch:g}'}"


# What it costs.


def paid_back(summary: Summary) -> list[str]:
    """After how many requests of this batch size its compilations have paid back, from which cache."""
    back, cost = summary.payback, summary.payback.cost
    if back.requests == "nothing to pay back":
        return []
    against = [f"against {back.reference}"] if back.reference else []
    if isinstance(back.requests, str) or cost is None:
        return [_requests(back.requests), *against]
    told = [_requests(back.requests), f"from a {cost.cache} cache, {in_seconds(cost.seconds)}"]
    if cost.cache != "cold":
        told.append(f"{_requests(back.cold_requests)} from an empty cache, {in_seconds(cost.cold_seconds)}")
    return [*told, *against]


def _requests(requests: Requests) -> str:
    if isinstance(requests, str):
        return f"unknown: {REMEDY}" if requests == "unknown" else requests
    return counted(*requests)


# How far to trust the split.


def rests_on(findings: Findings) -> Iterator[tuple[str, str]]:
    """What the intervals of dispatch and kernel add up, of the main conditions' samples; label and text."""
    sampled = [
        (f"{short_name(summary)}, {phase.name}, batch {verdict.batch_size}", phase.samples)
        for verdict in findings.main
        for summary in verdict.modes
        for phase in summary.phases
        if phase.samples is not None
    ]
    if not sampled:
        return
    classes, rate = findings.left_open
    whose = "as a selftest that passes leaves open"
    if findings.left_open != PROVED:
        kind = "what the selftest leaves open" if findings.selftest else "without a selftest"
        whose = f"{kind}; one that passes leaves {_points(PROVED.classes)} and {_points(PROVED.rate)}"
    yield "samples", f"{sum(one.kernel + one.host for _, one in sampled):,} of the engine's thread"
    yield "taken for the other part", f"{_points(classes)} % of either part ({whose})"
    yield "shifted by sampling", f"{_points(rate)} points of the share ({whose})"
    case, worst = max(sampled, key=lambda one: _counting(one[1]))
    yield "counting", f"at most {_points(_counting(worst))} points of the share ({case})"
    case, worst = max(sampled, key=lambda one: _unclassified(one[1]))
    share = _points(_unclassified(worst))
    yield "in code of no class", f"at most {share} % of the samples, at either end ({case})"


def _counting(one: SampleCounts) -> float:
    return counting_error(one.kernel, one.host)


def _unclassified(one: SampleCounts) -> float:
    return one.unclassified / (one.kernel + one.host + one.unclassified)


def _points(share: float) -> str:
    return significant(100 * share, 2)


# Load.


def pair(estimate: BoundedEstimate | None, unit: str = "") -> tuple[str, str]:
    """An estimate and its interval: ('61.2', '58–63').

    With one end, the end alone: ('at least 58', ''). Without any, or without an estimate, a dash.
    """
    if estimate is None:
        return "–", "not measured"
    if not estimate.tells:
        return "–", "no rate is excluded: more requests or rounds would"
    if estimate.high == float("inf"):
        return f"at least {significant(estimate.low)}{unit}", ""
    if estimate.low == 0:
        return f"below {significant(estimate.high)}{unit}", ""
    between = span(Interval(0.0, estimate.low, estimate.high, 0))
    if not estimate.value.known:
        return f"{between}{unit}", ""
    return f"{significant(estimate.value.low)}{unit}", between
