"""Findings in words, the same in the page, in Markdown and on the terminal."""

from __future__ import annotations

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS, Group
from loadtests.report.findings import Findings
from loadtests.report.formatting import counted, in_seconds, listed, milliseconds, significant, span, times
from loadtests.report.summaries import REMEDY, Requests, Summary, Verdict
from service.statistics.boundedness import Crossover, CrossoverSpan
from service.statistics.choice import MARGIN
from service.statistics.intervals import BoundedEstimate, Interval

BUSY_NOISE = 1.25
"""Where the baseline differs from itself by this factor, the machine was busy with something else."""


def ratio(found: Interval) -> str:
    """'2.93× (2.81–3.05)'."""
    return f"{times(found.value)} ({span(found)})"


# The answer.

MARGIN_PERCENT = f"{100 * (MARGIN - 1):.0f} %"


def headline(findings: Findings) -> str:
    """The whole answer: by mode the batch sizes at which it is the one to ship, and what was left out."""
    verdicts = findings.main
    if not verdicts:
        return f"No cell of {BASELINE} was measured: there is nothing to compare with."
    if any(verdict.choice is None for verdict in verdicts):
        return f"Not resolved: fewer than {MINIMUM_ROUNDS} rounds are too few to tell modes apart."
    by_answer: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in verdicts:
        assert verdict.choice
        key = (verdict.choice.state, verdict.choice.ship, *verdict.choice.unresolved)
        by_answer.setdefault(key, []).append(verdict)
    parts = [_answer(group) for group in by_answer.values()]
    missing = "modes" if len(findings.left_out) > 1 else "the mode"
    left_out = [f"Not measured: {missing} {listed(findings.left_out)}."] if findings.left_out else []
    return " ".join([*parts, *left_out, *provisional(verdicts)])


def _answer(verdicts: list[Verdict]) -> str:
    choice = verdicts[0].choice
    assert choice
    at = f"Batch {listed([str(v.batch_size) for v in verdicts])}"
    if len(verdicts[0].modes) == 1:
        return f"{at}: {choice.ship} is the only mode that was measured."
    if choice.state == "equivalent":
        return f"{at}: {choice.baseline}, nothing is faster by more than {MARGIN_PERCENT}."
    gains = [times(s.against_plain.speedup.value) for v in verdicts if (s := v.shipped) and s.against_plain]
    gain = f"{listed(gains)} {choice.baseline}"
    if choice.state == "faster":
        return f"{at}: {choice.ship}, {gain}."
    either = f"{at}: {' or '.join([choice.ship, *choice.unresolved])}, not resolved"
    return f"{either}." if choice.baseline in (choice.ship, *choice.unresolved) else f"{either}; {gain}."


def provisional(verdicts: list[Verdict]) -> list[str]:
    """One sentence where the machine was too busy for a reliable answer, else none."""
    cells = [summary for verdict in verdicts for summary in verdict.summaries]
    disturbed = sum(s.disturbed for s in cells)
    reach = [end for v in verdicts if v.noise for end in (v.noise.high, 1 / max(v.noise.low, 1e-9))]
    noise = max(reach, default=1.0)
    if 2 * disturbed <= len(cells) and noise < BUSY_NOISE:
        return []
    found = [f"{disturbed} of {len(cells)} cells were disturbed"] if disturbed else []
    found.append(f"{BASELINE} differs from itself by up to {times(noise)}")
    return [f"Provisional: {', and '.join(found)}; measure again on a quiet machine."]


def gain(verdict: Verdict) -> str:
    choice, shipped = verdict.choice, verdict.shipped
    if choice is None or shipped is None:
        return f"fewer than {MINIMUM_ROUNDS} rounds: too few to tell modes apart"
    if len(verdict.modes) == 1:
        return f"{choice.ship} is the only mode that was measured"
    if choice.state == "equivalent":
        return f"no mode is faster than {choice.baseline} by more than {MARGIN_PERCENT}"
    if shipped.against_plain is None:
        return f"{choice.baseline} is the fastest measured"
    return f"{times(shipped.against_plain.speedup.value)} the speed of {choice.baseline}"


def certainty(verdict: Verdict) -> list[str]:
    """Which modes are equivalent to the one to ship, or which may be the right one; a line each."""
    choice = verdict.choice
    if choice is None:
        return []
    found = []
    if choice.ship not in (choice.fastest, choice.baseline):
        found.append(f"{choice.fastest} is within {MARGIN_PERCENT} of it, and less simple")
    if choice.unresolved:
        ran = next((one.comparison.speedup.samples for one in verdict.modes if one.comparison), 0)
        found.append(f"{listed(list(choice.unresolved))} may be the right one: {ran} rounds do not tell")
        if choice.rounds_needed:
            found.append(f"about {choice.rounds_needed:,} rounds would")
    return found


def reasons(findings: Findings) -> list[tuple[str, str]]:
    if not findings.main:
        return []
    found = [("Why", why(findings)), ("How far to trust it", trust(findings))]
    return [one for one in (*found, ("What would change it", would_change(findings))) if one[1]]


def why(findings: Findings) -> str:
    """Where the time that the answer saves comes from, at the smallest and the largest batch size."""
    shipped = [(one, one.shipped) for one in findings.main if one.shipped and one.shipped is not one.plain]
    if not shipped:
        return _dispatch_left(findings.main[0])
    ends = shipped if len(shipped) < 2 else [shipped[0], shipped[-1]]
    cuda = findings.results.device == "cuda"
    return " ".join(_saved_by(verdict.plain, best, verdict.batch_size, cuda) for verdict, best in ends)


def _saved_by(plain: Summary, best: Summary, batch: int, cuda: bool) -> str:
    """On CUDA kernels run beside dispatch, and are no part of what is saved."""
    total, at = plain.mean_seconds - best.mean_seconds, f"At batch {batch},"
    if total <= 0:
        return f"{at} nothing is saved in the mean: the typical round is faster, single requests are not."
    dispatch, kernel = (_less(part, plain, best) for part in ("dispatch", "kernel"))
    per = f"saved per {plain.words.timed}"
    if dispatch is None:
        return f"{at} {milliseconds(total)} of {milliseconds(plain.mean_seconds)} are {per}."
    unresolved = f"; whether kernels got faster{' too' if dispatch > 0 else ''} is not resolved."
    told = not cuda and kernel is not None
    resolved = kernel if told and _resolved(plain, best) else None
    tail = unresolved if told and resolved is None else "."
    if all(0 <= part <= total for part in (dispatch, resolved) if part is not None):
        text = f"{at} {significant(1e3 * dispatch)} of the {milliseconds(total)} {per} are dispatch"
        return text + (tail if resolved is None else f", {significant(1e3 * resolved)} kernels.")
    # A part that grew, or shrank by more than the whole, is no share of it.
    text = f"{at} {milliseconds(total)} are {per}: dispatch takes {_changed(dispatch)}"
    return text + (tail if resolved is None else f", kernels {_changed(resolved)}.")


def _changed(less: float) -> str:
    return f"{milliseconds(abs(less))} {'less' if less > 0 else 'more'}"


def _less(part: str, before: Summary, after: Summary) -> float | None:
    """By how many seconds `part` of a request got shorter; None where it is not known."""
    first, second = before.parts[part], after.parts[part]
    return None if first is None or second is None else first - second


def _dispatch_left(verdict: Verdict) -> str:
    share, cell = verdict.plain.main.index, verdict.plain.cell
    if share is None:
        return ""
    dispatch = f"dispatch is {100 * (1 - share):.0f} % of a {cell.workload.step} of {cell.mode}"
    return f"At batch {verdict.batch_size} {dispatch}."


DISTURBED = {
    "sharing_note": "Other processes used the GPU meanwhile",
    "profiler_note": "The profiler was attached, which slows launches",
}
"""By the engine's own note of it: what a reader must know before trusting the numbers."""


def trust(findings: Findings) -> str:
    engine = findings.results.run.engine
    noted = [f" {said}: see Where it was measured." for name, said in DISTURBED.items() if engine.get(name)]
    parts = len(findings.results.run.parts)
    starts = "one start of the service" if parts < 2 else f"{parts} starts of the service"
    split = "Dispatch and kernel are proved by the selftest of this machine."
    if findings.proof.missing:
        split = f"Dispatch and kernel: {findings.proof.missing[:1].lower()}{findings.proof.missing[1:]}"
    elif findings.proof.proved is None:
        split = "Dispatch is measured."
    compared = findings.words.compared
    return (
        (compared and f"{compared} ") + f"Measured in {starts}: an interval covers its rounds, and another "
        "start may differ by some per cent; several starts, as by --preset standard, tell by how much. In at "
        f"most 5 % of such sweeps a verdict of any batch size is wrong. {split}" + "".join(noted)
    )


def would_change(findings: Findings) -> str:
    model = findings.results.run.engine.get("model", "one model")
    return f"Measured here: {model}, {conditions(findings.main[0].group)}. {findings.words.changes}"


def conditions(group: Group) -> str:
    """What else a group's cells have in common, besides their batch size."""
    _, asked, tokens, concurrency, *_ = group
    work = [f"{asked} prompts", f"{tokens} new tokens"]
    if tokens is None:  # of a module
        work = [] if asked is None else [asked.replace("=", " ", 1)]
    return ", ".join([*work, f"concurrency {concurrency}"])


# Why.


def saved(verdict: Verdict) -> list[str]:
    """How the mean times of the plain mode change in the mode to ship: '2.00 → 1.00 ms dispatch'.

    Empty where it is that one.
    """
    base, shipped = verdict.plain, verdict.shipped
    if shipped is None or shipped is base:
        return []
    changes = {part: (base.parts[part], shipped.parts[part]) for part in ("dispatch", "kernel")}
    known = [f"{_change(*both)} {part}" for part, both in changes.items() if None not in both]
    return [f"{_change(base.mean_seconds, shipped.mean_seconds)} in all", *known]


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
    least, most = 0.0, 0.0
    for phase in summary.phases:
        wall, low, high = phase.wall_seconds, phase.dispatch_low_seconds, phase.dispatch_high_seconds
        if wall is None or low is None or high is None:
            return None
        least, most = least + wall - high, most + wall - low
    return least, most


def crossing(findings: Findings) -> str:
    """Where the baseline's kernels take as long as its dispatch, saying no more than was measured."""
    found = findings.crossover
    if found.typical.where == "unknown":
        return "Crossover unknown: kernel time is not measured here."
    ends = "interval unknown" if found.earliest.where == "unknown" else _crossing_ends(found)
    where = f"{_at(found.typical)} ({ends})"
    return f"In {findings.words.main} {BASELINE}'s kernels take as long as its dispatch {where}."


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
    """After how many requests of this batch size its compilations have paid back, from which cache.

    First of this batch size's compilations, then of those of all batch sizes.
    """
    back, cost = summary.payback, summary.payback.cost
    if back.requests == "nothing to pay back":
        return []
    against = [f"against {back.reference}"] if back.reference else []
    if isinstance(back.requests, str) or cost is None:
        return [_requests(back.requests), *against]
    found = [
        _requests(back.requests),
        f"if this batch size alone is compiled ({in_seconds(cost.seconds)}, {cost.cache} cache)",
        f"{_requests(back.all_requests)} if all are ({in_seconds(cost.all_seconds)})",
    ]
    if cost.cache != "cold":
        own, every = in_seconds(cost.cold_seconds), in_seconds(cost.all_cold_seconds)
        found.append(f"{_requests(back.cold_requests)} from an empty cache ({own})")
        found.append(f"{_requests(back.all_cold_requests)} if all are, from an empty cache ({every})")
    return [*found, *against]


def _requests(requests: Requests) -> str:
    if isinstance(requests, str):
        return f"unknown: {REMEDY}" if requests == "unknown" else requests
    return counted(*requests)


# Load.


def pair(estimate: BoundedEstimate) -> tuple[str, str]:
    """An estimate and its interval: ('61.2', '58–63').

    With one end, the end alone: ('at least 58', ''). Without any, or without an estimate, a dash.
    """
    if not estimate.tells:
        return "–", "no rate is excluded: more requests or rounds would"
    if estimate.high == float("inf"):
        return f"at least {significant(estimate.low)}", ""
    if estimate.low == 0:
        return f"below {significant(estimate.high)}", ""
    between = span(Interval(0.0, estimate.low, estimate.high, 0))
    if not estimate.value.known:
        return between, ""
    return significant(estimate.value.low), between
