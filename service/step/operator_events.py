"""The operator calls of a trace: all of them, those that no other one made, and their self times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from service.step.trace import Event


def operator_calls(events: Iterable[Event]) -> list[Event]:
    """Calls into the dispatcher; compiled regions leave marks of the same category, without a namespace."""
    return [e for e in events if e.get("cat") == "cpu_op" and e.get("ph") == "X" and "::" in e["name"]]


def outermost(operators: Sequence[Event]) -> list[Event]:
    """Operators that were not called by another one on their thread."""
    until: dict[Any, float] = {}
    found = []
    for event in sorted(operators, key=lambda event: (event["ts"], -event["dur"])):
        if event["ts"] >= until.get(event.get("tid"), -1.0):
            found.append(event)
            until[event.get("tid")] = event["ts"] + event["dur"]
    return found


def operator_table(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Self time per operator over a whole trace: name, calls, self_seconds; the largest first."""
    totals: dict[str, tuple[int, float]] = {}
    stack: list[tuple[Event, list[float]]] = []
    for event in sorted(operator_calls(events), key=lambda event: (event["ts"], -event["dur"])):
        while stack and event["ts"] >= stack[-1][0]["ts"] + stack[-1][0]["dur"]:
            _settle(totals, *stack.pop())
        if stack:
            stack[-1][1].append(event["dur"])
        stack.append((event, []))
    while stack:
        _settle(totals, *stack.pop())
    rows = [{"name": n, "calls": calls, "self_seconds": micro / 1e6} for n, (calls, micro) in totals.items()]
    return sorted(rows, key=lambda row: float(row["self_seconds"]), reverse=True)


def _settle(totals: dict[str, tuple[int, float]], event: Event, inner: list[float]) -> None:
    calls, micro = totals.get(event["name"], (0, 0.0))
    totals[event["name"]] = calls + 1, micro + max(0.0, event["dur"] - sum(inner))
