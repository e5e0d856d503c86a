"""Goals of the section `sizes`, which are of one kind of GPU and only inform."""

from __future__ import annotations

from service.gpu_check.goal import BySection, Goal, judged, rows_of
from service.gpu_check.rows import Row

SECTION = "sizes"
GRAPHS = "reduce-overhead"
MOST_MILLISECONDS = 0.35
STRETCH_MILLISECONDS = 0.22
LEAST_SHARE = 0.45
STRETCH_SHARE = 0.60


def size_goals(rows: BySection) -> list[Goal]:
    """The device's time of a token of `small`, and how near `base` comes to the memory's bandwidth."""
    return [_small(rows), _base(rows)]


def _small(rows: BySection) -> Goal:
    name = f"small, bfloat16, batch 1, {GRAPHS}: device time per token"
    goal = f"≤ {MOST_MILLISECONDS} ms (stretch {STRETCH_MILLISECONDS})"
    row = _size(rows, "small")
    if row is None or row["device_seconds"] is None:
        return Goal(name, "not measured", goal, "unknown", decides=False)
    milliseconds = row["device_seconds"] * 1e3
    reached = "; stretch reached" if milliseconds <= STRETCH_MILLISECONDS else ""
    met = judged(milliseconds <= MOST_MILLISECONDS)
    return Goal(name, f"{milliseconds:.3f} ms{reached}", goal, met, decides=False)


def _base(rows: BySection) -> Goal:
    name = f"base, bfloat16, batch 1, {GRAPHS}: share of copy bandwidth"
    goal = f"≥ {LEAST_SHARE:.0%} (stretch {STRETCH_SHARE:.0%})"
    row = _size(rows, "base")
    if row is None or row["device_roofline"] is None:
        return Goal(name, "not measured", goal, "unknown", decides=False)
    share = row["device_roofline"]["share"]["value"]
    reached = "; stretch reached" if share >= STRETCH_SHARE else ""
    return Goal(name, f"{share:.0%}{reached}", goal, judged(share >= LEAST_SHARE), decides=False)


def _size(rows: BySection, model: str) -> Row | None:
    wanted = (model, GRAPHS, 1)
    found = (
        row for row in rows_of(rows, "sizes", "size") if (row["model"], row["mode"], row["batch"]) == wanted
    )
    return next(found, None)
