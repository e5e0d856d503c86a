"""What a GPU must show, each with its goal and a verdict from the rows; what was not measured is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from service.gpu_check.rows import Row

BySection = Mapping[str, list[Row]]
Verdict = Literal["met", "missed", "undecided", "unknown"]

GRAPHS = "reduce-overhead"
APART = 0.05
MOST_OVERHEAD = 1.01
FIRST_ROW_SECONDS = 60.0
MOST_MILLISECONDS = 0.35
STRETCH_MILLISECONDS = 0.22
LEAST_SHARE = 0.45
STRETCH_SHARE = 0.60


@dataclass(frozen=True, slots=True)
class Goal:
    """A line of the last table. `decides`: the exit code hangs on it; goals of speed only inform.

    A deciding goal holds only where it is `met`: unknown and undecided are no success.
    """

    name: str
    found: str
    goal: str
    verdict: Verdict
    decides: bool = True

    @property
    def holds(self) -> bool:
        """Whether the exit code may be 0 in spite of it."""
        return self.verdict == "met" or not self.decides


def goals(rows: BySection, started: float) -> list[Goal]:
    """All of them; `started` is the check's first instant, in Unix seconds."""
    return [
        _first_row(rows, started),
        *(_parity(rows, section) for section in ("ladder", "float32")),
        _tests(rows),
        _graph_launches(rows),
        _other_launches(rows),
        *_sessions(rows),
        _instrumentation(rows),
        _small(rows),
        _base(rows),
    ]


def _of(rows: BySection, section: str, kind: str) -> list[Row]:
    return [row for row in rows.get(section, []) if row["kind"] == kind]


def _judged(holds: bool) -> Verdict:
    return "met" if holds else "missed"


def _first_row(rows: BySection, started: float) -> Goal:
    name, goal = "first result on disk", f"≤ {FIRST_ROW_SECONDS:.0f} s"
    instants = [row["at"] for found in rows.values() for row in found]
    if not instants:
        return Goal(name, "none", goal, "missed")
    seconds = min(instants) - started
    return Goal(name, f"{seconds:.0f} s", goal, _judged(seconds <= FIRST_ROW_SECONDS))


def _parity(rows: BySection, section: str) -> Goal:
    dtype = "bfloat16" if section == "ladder" else section
    name, goal = f"parity with eager, {dtype}", "every mode ready"
    states = {row["mode"]: row["state"] for row in _of(rows, section, "mode")}
    if not states:
        return Goal(name, "no mode was warmed up", goal, "unknown")
    others = [f"{mode} is {state}" for mode, state in states.items() if state != "ready"]
    found = "; ".join(others) or f"{len(states)} of {len(states)} ready"
    return Goal(name, found, goal, _judged(not others))


def _tests(rows: BySection) -> Goal:
    outcomes = [row["outcome"] for row in _of(rows, "tests", "test")]
    counts = {outcome: outcomes.count(outcome) for outcome in ("passed", "failed", "skipped")}
    found = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count) or "none ran"
    verdict = _judged(counts["passed"] == len(outcomes)) if outcomes else "unknown"
    return Goal("tests/gpu", found, "all pass", verdict)


def _graph_launches(rows: BySection) -> Goal:
    found = {row["batch"]: row["per_step"] for row in _of(rows, "ladder", "graph_launches")}
    text = ", ".join(f"{_number(count)} at batch {batch}" for batch, count in found.items()) or "not measured"
    known = found and None not in found.values()
    verdict = _judged(all(count == 1 for count in found.values())) if known else "unknown"
    return Goal(f"{GRAPHS}: graph launches per decode step", text, "1", verdict)


def _other_launches(rows: BySection) -> Goal:
    name, goal = f"{GRAPHS}: other launches per decode step", "≤ 1"
    cells = [row for row in _of(rows, "ladder", "cell") if row["mode"] == GRAPHS]
    counted = [row for row in cells if None not in (row["launches"], row["graph_launches"])]
    if not counted:
        return Goal(name, "not measured", goal, "unknown")
    most = max(row["launches"] - row["graph_launches"] for row in counted)
    return Goal(name, f"at most {_number(most)}", goal, _judged(most <= 1))


def _sessions(rows: BySection) -> Iterable[Goal]:
    """Kernels by window against queued replays and against ids, which only inform: CUPTI has a defect."""
    sessions = {row["session"]: row for row in _of(rows, "profiler", "session")}
    windows = {number: _median(row["busy_seconds_by_window"]) for number, row in sessions.items()}
    within = f"within {APART:.0%}"
    yield _alike("kernels by window, sessions over the first", [windows.get(1)], windows.values(), within)
    queued = [row["queued_seconds"] for row in _of(rows, "profiler", "unprofiled")][:1]
    spans = [_median(row["span_seconds_by_window"]) for row in sessions.values()]
    yield _alike("a step's span by window over queued replays", queued, spans, within)
    for number, row in sessions.items():
        by_id = [_median(row["busy_seconds_by_id"])]
        name = f"kernels by id over those by window, session {number}"
        yield _alike(name, [windows[number]], by_id, within, decides=False)


def _alike(
    name: str, below: list[float | None], above: Iterable[float | None], goal: str, decides: bool = True
) -> Goal:
    """Whether every one of `above` over the one of `below` is near 1; shows the farthest."""
    values = list(above)
    reference = below[0] if below else None
    if not reference or not values or None in values:
        return Goal(name, "not measured", goal, "unknown", decides)
    ratios = [value / reference for value in values if value is not None]
    farthest = max(ratios, key=lambda ratio: abs(ratio - 1))
    return Goal(name, f"{farthest:.3f}", goal, _judged(abs(farthest - 1) <= APART), decides)


def _instrumentation(rows: BySection) -> Goal:
    name, goal = "instrumentation full / off, decode step", f"≤ {MOST_OVERHEAD}"
    found = _of(rows, "profiler", "instrumentation")
    if not found or None in (found[0]["low"], found[0]["high"]):
        return Goal(name, "not measured", goal, "unknown")
    value, low, high = (found[0][end] for end in ("value", "low", "high"))
    verdict: Verdict = "met" if high <= MOST_OVERHEAD else "missed" if low > MOST_OVERHEAD else "undecided"
    return Goal(name, f"{value:.3f} [{low:.3f}, {high:.3f}]", goal, verdict)


def _small(rows: BySection) -> Goal:
    name = f"small, bfloat16, batch 1, {GRAPHS}: device time per token"
    goal = f"≤ {MOST_MILLISECONDS} ms (stretch {STRETCH_MILLISECONDS})"
    row = _size(rows, "small")
    if row is None or row["device_seconds"] is None:
        return Goal(name, "not measured", goal, "unknown", decides=False)
    milliseconds = row["device_seconds"] * 1e3
    reached = "; stretch reached" if milliseconds <= STRETCH_MILLISECONDS else ""
    met = _judged(milliseconds <= MOST_MILLISECONDS)
    return Goal(name, f"{milliseconds:.3f} ms{reached}", goal, met, decides=False)


def _base(rows: BySection) -> Goal:
    name = f"base, bfloat16, batch 1, {GRAPHS}: share of copy bandwidth"
    goal = f"≥ {LEAST_SHARE:.0%} (stretch {STRETCH_SHARE:.0%})"
    row = _size(rows, "base")
    if row is None or row["device_roofline"] is None:
        return Goal(name, "not measured", goal, "unknown", decides=False)
    share = row["device_roofline"]["share"]["value"]
    reached = "; stretch reached" if share >= STRETCH_SHARE else ""
    return Goal(name, f"{share:.0%}{reached}", goal, _judged(share >= LEAST_SHARE), decides=False)


def _size(rows: BySection, model: str) -> Row | None:
    wanted = (model, GRAPHS, 1)
    found = (row for row in _of(rows, "sizes", "size") if (row["model"], row["mode"], row["batch"]) == wanted)
    return next(found, None)


def _median(values: list[float | None]) -> float | None:
    """The median of a session's steps; None where one of them had no kernels."""
    known = [value for value in values if value is not None]
    return median(known) if known and len(known) == len(values) else None


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
