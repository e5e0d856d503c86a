"""Goals of the section `profiler`: its ways to a step's device time agree, and measuring costs little."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from service.gpu_check.goal import BySection, Goal, Verdict, judged, rows_of

SESSIONS = 4
APART = 0.05
MOST_OVERHEAD = 1.01


def sessions(rows: BySection) -> Iterable[Goal]:
    """Kernels by window against queued replays, and against ids, which only inform: CUPTI has a defect.

    A replay lasts at least as long as its kernels, and at most as long as their span under the profiler,
    which lengthens the gaps between a graph's nodes: by how much only informs.
    """
    written = {row["session"]: row for row in rows_of(rows, "profiler", "session")}
    windows, spans, by_id = (
        [_median(written.get(number, {}).get(field, [])) for number in range(1, SESSIONS + 1)]
        for field in ("busy_seconds_by_window", "span_seconds_by_window", "busy_seconds_by_id")
    )
    within = f"within {APART:.0%}"
    yield alike("kernels by window, sessions over the first", windows[:1], windows, within)
    unprofiled = rows_of(rows, "profiler", "unprofiled")[:1]
    # Where the host could not queue ahead, the device idled in between: that is not what a step takes.
    queued = [None if row["upper_bound"] else row["queued_seconds"] for row in unprofiled]
    yield _at_most("a step's kernels by window over queued replays", windows, queued)
    yield _at_most("queued replays over a step's span by window", queued, spans)
    yield alike("a step's span by window over queued replays", queued, spans, within, decides=False)
    for place, by_window in enumerate(windows):
        name = f"kernels by id over those by window, session {place + 1}"
        yield alike(name, [by_window], [by_id[place]], within, decides=False)


def attached(rows: BySection) -> Goal:
    """Whether CUPTI, which stays attached after a first session, slows what comes after (pytorch #146604)."""
    dispatch = [row["dispatch_seconds"] for row in rows_of(rows, "profiler", "unprofiled")]
    name = "dispatch after profiler sessions over before"
    return alike(name, dispatch[:1], dispatch[1:], f"within {APART:.0%}", decides=False)


def alike(
    name: str, below: list[float | None], above: Iterable[float | None], goal: str, decides: bool = True
) -> Goal:
    """Whether every one of `above` over the one of `below` is near 1; shows the farthest."""
    values = list(above)
    reference = below[0] if below else None
    if not reference or not values or None in values:
        return Goal(name, "not measured", goal, "unknown", decides)
    ratios = [value / reference for value in values if value is not None]
    farthest = max(ratios, key=lambda ratio: abs(ratio - 1))
    return Goal(name, f"{farthest:.3f}", goal, judged(abs(farthest - 1) <= APART), decides)


def _at_most(name: str, parts: list[float | None], wholes: list[float | None]) -> Goal:
    """Whether none of `parts` is longer than any of `wholes`; shows the longest over the shortest."""
    goal = f"≤ {1 + APART}"
    known = [value for value in (*parts, *wholes) if value]
    if not parts or not wholes or len(known) < len(parts) + len(wholes):
        return Goal(name, "not measured", goal, "unknown")
    ratio = max(known[: len(parts)]) / min(known[len(parts) :])
    return Goal(name, f"{ratio:.3f}", goal, judged(ratio <= 1 + APART))


def instrumentation(rows: BySection) -> Goal:
    """What measuring in full adds to a decode step, by its interval."""
    name, goal = "instrumentation full / off, decode step", f"≤ {MOST_OVERHEAD}"
    found = rows_of(rows, "profiler", "instrumentation")
    if not found or None in (found[0]["low"], found[0]["high"]):
        return Goal(name, "not measured", goal, "unknown")
    value, low, high = (found[0][end] for end in ("value", "low", "high"))
    verdict: Verdict = "met" if high <= MOST_OVERHEAD else "missed" if low > MOST_OVERHEAD else "undecided"
    return Goal(name, f"{value:.3f} [{low:.3f}, {high:.3f}]", goal, verdict)


def _median(values: list[float | None]) -> float | None:
    """The median of a session's steps; None without any, and where one of them had no kernels."""
    known = [value for value in values if value is not None]
    return median(known) if known and len(known) == len(values) else None
