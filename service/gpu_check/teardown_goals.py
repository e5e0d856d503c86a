"""Goals of the section `teardown`: graphs outlive a profiler that lets go, and have their dispatch back."""

from __future__ import annotations

from collections.abc import Iterable

from service.gpu_check.goal import BySection, Goal, judged, rows_of
from service.gpu_check.profiler_goals import APART, alike
from service.gpu_check.rows import Row

SECTION = "teardown"


def teardown_goals(rows: BySection) -> list[Goal]:
    """Whether steps compute what they did, which decides; per mode dispatch after sessions over before."""
    planned = rows_of(rows, SECTION, "plan")
    modes = planned[0]["modes"] if planned else []
    return [_same(rows), *(_dispatch(rows, mode) for mode in modes)]


def _same(rows: BySection) -> Goal:
    name, goal = "logits after a profiler let go, as before it", "all the same"
    planned, let_go = rows_of(rows, SECTION, "plan"), rows_of(rows, SECTION, "let_go")
    found = [*let_go, *rows_of(rows, SECTION, "made_after")]
    if others := [_when(row) for row in found if not row["same"]]:
        return Goal(name, f"others: {', '.join(others)}", goal, "missed")
    wanted = len(planned[0]["modes"]) * (planned[0]["sessions"] + 2) if planned else 1
    if len(found) < wanted:
        return Goal(name, "not measured", goal, "unknown")
    if not _recorded(let_go):
        return Goal(name, "a session recorded no launch, so nothing had to let go", goal, "unknown")
    return Goal(name, f"all {wanted}", goal, judged(True))


def _when(row: Row) -> str:
    made = row["kind"] == "made_after"
    return f"{row['mode']} made after all" if made else f"{row['mode']} after {row['sessions']}"


def _recorded(let_go: Iterable[Row]) -> bool:
    """Whether each session saw the device's calls: else the profiler was not attached."""
    return all(row["launches"] for row in let_go if row["sessions"])


def _dispatch(rows: BySection, mode: str) -> Goal:
    """Near 1 where letting go gives a mode its dispatch back; it would be the reason to let go by default."""
    own = [row["dispatch_seconds"] for row in rows_of(rows, SECTION, "let_go") if row["mode"] == mode]
    name = f"{mode}: dispatch after sessions that let go over before"
    return alike(name, own[:1], own[1:], f"within {APART:.0%}", decides=False)
