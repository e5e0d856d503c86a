"""The parts of a request: none negative, and what `other` is made of, found apart."""

from __future__ import annotations

from statistics import median
from typing import Any

from service.measure.rounds import Say
from service.selftest.results import CheckResult, exact, judged
from service.selftest.running_service import Served
from service.statistics.intervals import median_interval

REQUESTS = 20
SUMMED = ("queue_seconds", "dispatch_seconds", "kernel_seconds", "sync_wait_seconds", "other_seconds")
PIECES = ("border_seconds", "tokenise_seconds", "front_seconds")
"""Pieces of `other` that the answer itself may name."""

APART = 0.10

Timings = dict[str, Any]


def request_parts(served: Served, say: Say, engine_seconds: dict[str, float]) -> list[CheckResult]:
    """Over real requests, modes taking turns; `engine_seconds` is the engine's work outside steps, by mode.

    That one was found in another process, without HTTP: tokens taken in, buffers, layout, text, book-keeping.
    """
    found: dict[str, list[Timings]] = {mode: [] for mode in served.modes}
    with served.connection() as connection:
        for number in range(REQUESTS + 2):
            say(f"request {number + 1} of {REQUESTS + 2}, each mode")
            for mode in served.modes:
                timings = connection.generate(mode)
                if number >= 2:
                    found[mode].append(timings)
    everything = [timings for rows in found.values() for timings in rows]
    rows = [_signs(everything), _sums(everything)]
    return rows + [
        _pieces(mode, found[mode], engine_seconds[mode]) for mode in served.modes if mode in engine_seconds
    ]


def _signs(requests: list[Timings]) -> CheckResult:
    smallest = {
        name: min(timings[name] for timings in requests)
        for name in (*SUMMED, *PIECES)
        if all(timings.get(name) is not None for timings in requests)
    }
    name = min(smallest, key=lambda part: smallest[part])
    note = f"smallest of {len(requests)} requests: {name} {smallest[name] * 1e6:.0f} µs"
    return exact("no part of a request is negative", "≥ 0", smallest[name] >= 0, smallest[name], "s", note)


def _sums(requests: list[Timings]) -> CheckResult:
    """By construction: `other` closes the sum. On CUDA kernels run beside it and are not added."""

    def off(timings: Timings) -> float:
        beside = "kernel_seconds" if timings["sync_wait_seconds"] is not None else None
        parts = sum(timings[name] or 0.0 for name in SUMMED if name != beside)
        return abs(float(parts - timings["total_seconds"]))

    largest = max(map(off, requests))
    return exact(
        "parts sum to the total",
        "by construction",
        largest < 1e-9,
        largest,
        "s",
        "`other` is what closes the sum",
    )


def _pieces(mode: str, requests: list[Timings], engine_seconds: float) -> CheckResult:
    """Everything that is named or was found apart, over `other`."""
    named = [name for name in (*PIECES, "other_seconds") if name in requests[0]]
    micro = {name: median(t[name] for t in requests) * 1e6 for name in named}
    pieces = {name.removesuffix("_seconds"): micro[name] for name in named[:-1]}
    pieces["engine outside its steps"] = engine_seconds * 1e6
    ratio = median_interval(
        [(sum(t[name] for name in named[:-1]) + engine_seconds) / t["other_seconds"] for t in requests]
    )
    shown = " + ".join(f"{name} {value:.0f}" for name, value in pieces.items())
    note = f"other {micro['other_seconds']:.0f} µs; {shown} = {sum(pieces.values()):.0f}"
    return judged(
        f"other's pieces, measured apart, / other: {mode}",
        "within 10 %",
        ratio,
        least=1 - APART,
        most=1 + APART,
        note=note,
        numbers={k: v / 1e6 for k, v in micro.items()},
    )
