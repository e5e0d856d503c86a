"""What a GPU must show, each with its goal and a verdict from the rows; what was not measured is unknown."""

from __future__ import annotations

from service.gpu_check.goal import BySection, Goal, judged, rows_of
from service.gpu_check.plan import TOTAL_SECONDS
from service.gpu_check.profiler_goals import attached, instrumentation, sessions
from service.gpu_check.rows import Row
from service.protocol.modes import MODES

GRAPHS = "reduce-overhead"
FIRST_ROW_SECONDS = 60.0
MOST_SECONDS_COLD, MOST_SECONDS_WARM = TOTAL_SECONDS, 300.0


def goals(rows: BySection, started: float, seconds: float, cold: bool) -> list[Goal]:
    """All of them, of a check of `seconds` from `started` (Unix seconds) on; `cold`: no code cached."""
    return [
        _first_row(rows, started),
        _length(seconds, cold),
        *(_parity(rows, section) for section in ("ladder", "float32")),
        _tests(rows),
        _jobs(rows),
        _replays(rows),
        _graph_launches(rows),
        _other_launches(rows),
        *sessions(rows),
        attached(rows),
        instrumentation(rows),
    ]


def _first_row(rows: BySection, started: float) -> Goal:
    name, goal = "first result on disk", f"≤ {FIRST_ROW_SECONDS:.0f} s"
    instants = [row["at"] for found in rows.values() for row in found]
    if not instants:
        return Goal(name, "none", goal, "missed")
    seconds = min(instants) - started
    return Goal(name, f"{seconds:.0f} s", goal, judged(seconds <= FIRST_ROW_SECONDS))


def _length(seconds: float, cold: bool) -> Goal:
    most = MOST_SECONDS_COLD if cold else MOST_SECONDS_WARM
    name = f"all sections, compile cache {'cold' if cold else 'warm'}"
    return Goal(name, f"{seconds:.0f} s", f"≤ {most:.0f} s", judged(seconds <= most), decides=False)


def _parity(rows: BySection, section: str) -> Goal:
    dtype = "bfloat16" if section == "ladder" else section
    name, goal = f"parity with eager, {dtype}", "every mode ready"
    planned = rows_of(rows, section, "plan")
    if not planned:
        return Goal(name, "not measured", goal, "unknown")
    states = dict.fromkeys(planned[0]["modes"], "never warmed up")
    states |= {row["mode"]: row["state"] for row in rows_of(rows, section, "mode")}
    others = [f"{mode}: {state}" for mode, state in states.items() if state != "ready"]
    found = "; ".join(others) or f"{len(states)} of {len(states)} ready"
    return Goal(name, found, goal, judged(not others))


def _replays(rows: BySection) -> Goal:
    """A mode that serves without the replay it promises is ready, so that parity does not show it."""
    name, goal = "modes that promise graph replay", "each replays, proved"
    planned = rows_of(rows, "ladder", "plan")
    newest = {row["mode"]: row for row in rows_of(rows, "ladder", "mode")}
    promised = [mode for mode in (planned[0]["modes"] if planned else []) if MODES[mode].cuda.graph_replay]
    if not promised or not newest.keys() >= set(promised):
        return Goal(name, "not measured", goal, "unknown")
    others = [text for mode in promised if (text := _not_replayed(newest[mode]))]
    return Goal(name, "; ".join(others) or f"all {len(promised)}", goal, judged(not others))


def _not_replayed(row: Row) -> str | None:
    """What is known against the mode of `row`; a failed one still has its own name, and no reason."""
    if row["state"] != "ready":
        return f"{row['mode']}: {row['state']}"
    replayed = row["effective"] == row["mode"] and not row["reason"]
    return None if replayed else f"{row['mode']} as {row['effective']}: {row['reason']}"


def _tests(rows: BySection) -> Goal:
    outcomes = [row["outcome"] for row in rows_of(rows, "tests", "test")]
    counts = {outcome: outcomes.count(outcome) for outcome in ("passed", "failed", "skipped")}
    collected = rows_of(rows, "tests", "collected")
    if not collected:
        return Goal("tests/gpu", "not collected", "all pass", "unknown")
    wanted = collected[0]["count"]
    texts = [f"{count} {outcome}" for outcome, count in counts.items() if count]
    found = f"of {wanted}: {', '.join(texts) or 'none ran'}"
    return Goal("tests/gpu", found, "all pass", judged(0 < wanted == counts["passed"]))


def _jobs(rows: BySection) -> Goal:
    name, planned = "jobs of the ladder", rows_of(rows, "ladder", "plan")
    if not planned:
        return Goal(name, "not measured", "all well", "unknown")
    outcomes = [row["outcome"] for row in rows_of(rows, "ladder", "job")]
    good, wanted = outcomes.count("ok"), planned[0]["jobs"]
    return Goal(name, f"{good} of {wanted} well", "all well", judged(0 < wanted == good))


def _graph_launches(rows: BySection) -> Goal:
    found: dict[int, float | None] = dict.fromkeys(_planned_batches(rows))
    found |= {row["batch"]: row["graph_launches"] for row in _graph_cells(rows)}
    text = ", ".join(f"{_number(count)} at batch {batch}" for batch, count in found.items()) or "not measured"
    known = found and None not in found.values()
    verdict = judged(all(count == 1 for count in found.values())) if known else "unknown"
    return Goal(f"{GRAPHS}: graph launches per decode step", text, "1", verdict)


def _other_launches(rows: BySection) -> Goal:
    name, goal = f"{GRAPHS}: other launches per decode step", "≤ 1"
    counted = [row for row in _graph_cells(rows) if None not in (row["launches"], row["graph_launches"])]
    if not counted or len(counted) < len(_planned_batches(rows)):
        return Goal(name, f"measured at {len(counted)} batches", goal, "unknown")
    most = max(row["launches"] - row["graph_launches"] for row in counted)
    return Goal(name, f"at most {_number(most)}", goal, judged(most <= 1))


def _graph_cells(rows: BySection) -> list[Row]:
    return [row for row in rows_of(rows, "ladder", "cell") if row["mode"] == GRAPHS]


def _planned_batches(rows: BySection) -> list[int]:
    planned = rows_of(rows, "ladder", "plan")
    return list(planned[0]["batches"]) if planned else []


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
