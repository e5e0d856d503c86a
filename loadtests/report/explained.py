"""Sentences that explain one answer from its numbers: what is saved, shares, headroom, payback."""

from __future__ import annotations

from loadtests.plan.cells import BASELINE
from loadtests.report.formatting import counted, in_seconds, listed, milliseconds, significant, span, times
from loadtests.report.payback import REMEDY, Cost, Payback, Requests
from loadtests.report.phases import PhaseMeans
from loadtests.report.summaries import Summary, Verdict
from loadtests.report.verdict import PLAIN
from loadtests.report.wording import short_name

LARGE_GAIN = 1.3
"""From this speed-up on, `kernel-bound` beside it needs a word of explanation."""

MANY_FAULTS = 10
"""Page faults per request that are worth a word."""

UNRESOLVED = ", a difference that the interval of the split does not resolve"


def what_is_saved(verdict: Verdict) -> str | None:
    """Which parts the time that the mode to ship saves comes from.

    None where it saves none, or where its parts are unknown. A change of kernel time that the interval of the
    split leaves open is called that. Where on a GPU the mode gains much although the baseline's decode is, or
    may be, kernel-bound, that is said first.
    """
    base, shipped = verdict.baseline, verdict.shipped
    if shipped is None or shipped is base or shipped.comparison is None:
        return None
    dispatches, kernels = ((base.parts[part], shipped.parts[part]) for part in ("dispatch", "kernel"))
    saved = base.mean_seconds - shipped.mean_seconds
    if None in (*kernels, *dispatches) or saved <= 0:
        return None
    bound = base.decode.bound or ""
    surprising = "kernel-bound" in bound and shipped.comparison.speedup.value >= LARGE_GAIN
    doubt = "" if _resolved(base, shipped) else UNRESOLVED
    changes = [_change("dispatch", *dispatches), f"{_change('kernel time', *kernels)}{doubt}"]
    if surprising:
        changes.reverse()
    joined = f"{',' if surprising and doubt else ''} and ".join(changes)
    told = f"the {milliseconds(saved)} that a request saves on average, {joined}"
    told += _faults(base, shipped)
    if not surprising:
        return f"Of {told}."
    gain = times(shipped.comparison.speedup.value)
    return f"{BASELINE}'s decode is {bound}, and {short_name(shipped)} is still {gain} as fast: of {told}."


def _change(name: str, before: float | None, after: float | None) -> str:
    fell = (before or 0.0) - (after or 0.0)
    verb = "come from" if fell >= 0 else "are lost to"
    ends = f"{significant(1e3 * (before or 0.0))} → {significant(1e3 * (after or 0.0))} ms"
    return f"{milliseconds(abs(fell))} {verb} {name} ({ends})"


def _resolved(base: Summary, shipped: Summary) -> bool:
    """Whether the two kernel times differ by more than their intervals; without intervals nothing says no."""
    before, after = _kernel_ends(base), _kernel_ends(shipped)
    if before is None or after is None:
        return True
    return before[0] > after[1] or after[0] > before[1]


def _kernel_ends(summary: Summary) -> tuple[float, float] | None:
    """The least and the most kernel seconds per request that the intervals of dispatch leave."""
    ends = []
    for phase in summary.phases:
        least, most, wall = phase.dispatch_low_seconds, phase.dispatch_high_seconds, phase.wall_seconds
        if least is None or most is None or wall is None:
            return None
        ends.append((wall - most, wall - least))
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def _faults(base: Summary, shipped: Summary) -> str:
    """The page faults that the baseline has and the mode to ship has not; samples in them are on no side."""
    before, after = (typical_faults(summary) for summary in (base, shipped))
    if before is None or after is None or before - after < MANY_FAULTS:
        return ""
    where = "both" if base.estimated else "the dispatch"
    return f"; {before - after:,.0f} page faults fewer are a part of {where}"


def typical_faults(summary: Summary) -> float | None:
    """Minor page faults of a typical request, of both phases: what a single one had is no reason for a mean.

    None where they were not recorded.
    """
    counts = [phase.typical_faults for phase in summary.phases if phase.typical_faults is not None]
    return sum(counts) if counts else None


def shares(summaries: list[Summary]) -> str:
    """The kernel share of both phases, decode first."""
    if all(summary.decode.index is None for summary in summaries):
        return "The kernel share is unknown: kernel time is not measured here."
    unknown = all(summary.decode.interval is None for summary in summaries)
    phases = []
    for place, name in ((1, "decode"), (0, "prefill")):
        known = [(s, s.phases[place]) for s in summaries if s.phases[place].index is not None]
        phases.append(f"{name} {', '.join(f'{_share(phase)} in {short_name(s)}' for s, phase in known)}")
    told = "; ".join(phases)
    return f"Kernel share: {told}{' (intervals unknown: not recorded)' if unknown else ''}."


def _share(phase: PhaseMeans) -> str:
    value = f"{100 * (phase.index or 0.0):.0f} %"
    if phase.interval is None:
        return value
    return f"{value} ({100 * phase.interval.low:.0f}–{100 * phase.interval.high:.0f})"


def headroom(verdict: Verdict) -> str | None:
    """How much faster a step without dispatch would be, and what the mode to ship gets; of a CPU alone."""
    plain = next((one for one in verdict.modes if one.cell.mode == PLAIN), verdict.baseline)
    room, shipped = plain.decode.headroom, verdict.shipped
    if room is None:
        return None
    told = (
        f"Dispatch is {100 * (1 - 1 / room.value):.0f} % of {plain.cell.mode}'s decode step: without it the "
        f"step would be {significant(room.value)} ({span(room)}) times as fast"
    )
    before, own = plain.decode.step_wall_seconds, shipped.decode.step_wall_seconds if shipped else None
    if before and own and own < before and shipped is not None:
        told += f"; {shipped.cell.mode} gets {significant(before / own)}"
    return f"{told}."


def paid_back(shipped: Summary) -> str:
    """After how many requests of this batch size the mode's compilations have paid back, warm and cold."""
    back = shipped.payback
    match back.requests:
        case "nothing to pay back":
            return "Nothing is compiled: there is nothing to pay back."
        case "unknown":
            return f"Payback is unknown: this run did not record what each compilation took; {REMEDY}."
        case "never":
            return f"Its compilations never pay back: it is not faster than {_reference(back)}."
        case "undecided":
            return (
                f"Whether its compilations pay back is undecided: it cannot be told from {_reference(back)}."
            )
    return f"{_paid(back, back.cost)}, against {_reference(back)}."


def _reference(back: Payback) -> str:
    return f"{back.reference}, the fastest mode without a compiler"


def _paid(back: Payback, cost: Cost | None) -> str:
    if cost is None:
        return "Its compilations are paid back after an unknown number of requests"
    parts = [_after(back.requests, cost.seconds, f"{cost.cache} cache")]
    if cost.cache != "cold":
        parts.append(_after(back.cold_requests, cost.cold_seconds, "empty cache"))
    return f"Its compilations for this batch are paid back after {listed(parts)}"


def _after(requests: Requests, seconds: float | None, cache: str) -> str:
    article = "an" if cache.startswith("empty") else "a"
    if isinstance(requests, str):
        return f"an unknown number from {article} {cache} ({REMEDY})"
    return f"{counted(*requests)} requests from {article} {cache} ({in_seconds(seconds)})"
