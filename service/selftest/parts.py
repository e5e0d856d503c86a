"""The parts of a request: none negative, and what `other` is made of, found apart."""

from __future__ import annotations

from statistics import median
from typing import Any

from service.selftest.rounds import Say
from service.selftest.rows import Row, exact, judged
from service.selftest.served import Served
from service.statistics import median_interval

REQUESTS = 20
SUMMED = ("queue_seconds", "dispatch_seconds", "kernel_seconds", "sync_wait_seconds", "other_seconds")
PIECES = ("border_seconds", "tokenise_seconds")
APART = 0.10

Timings = dict[str, Any]


def request_parts(served: Served, say: Say, engine_seconds: dict[str, float]) -> list[Row]:
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


def _signs(requests: list[Timings]) -> Row:
    smallest = {
        name: min(timings[name] for timings in requests)
        for name in (*SUMMED, *PIECES)
        if all(timings[name] is not None for timings in requests)
    }
    name = min(smallest, key=lambda part: smallest[part])
    note = f"smallest of {len(requests)} requests: {name} {smallest[name] * 1e6:.0f} µs"
    return exact("no part of a request is negative", "≥ 0", smallest[name] >= 0, smallest[name], "s", note)


def _sums(requests: list[Timings]) -> Row:
    """By construction: `other` closes the sum. On CUDA kernels run beside it and are not added."""

    def off(timings: Timings) -> float:
        beside = "kernel_seconds" if timings["sync_wait_seconds"] is not None else None
        parts = sum(timings[name] or 0.0 for name in SUMMED if name != beside)
        return abs(float(parts - timings["total_seconds"]))

    largest = max(map(off, requests))
    return exact("parts sum to the total", "by construction", largest < 1e-9, largest, "s",
                 "`other` is what closes the sum")  # fmt: skip


def _pieces(mode: str, requests: list[Timings], engine_seconds: float) -> Row:
    """(border + tokenise + the engine's work outside steps) / other."""
    ratio = median_interval(
        [
            (t["border_seconds"] + t["tokenise_seconds"] + engine_seconds) / t["other_seconds"]
            for t in requests
        ]
    )
    micro = {name: median(t[name] for t in requests) * 1e6 for name in (*PIECES, "other_seconds")}
    note = (
        f"other {micro['other_seconds']:.0f} µs = border {micro['border_seconds']:.0f} + tokenise"
        f" {micro['tokenise_seconds']:.0f} + engine between steps {engine_seconds * 1e6:.0f} + rest"
    )
    return judged(f"other's pieces, measured apart, / other: {mode}", "within 10 %", ratio, least=1 - APART,
                  most=1 + APART, note=note, numbers={k: v / 1e6 for k, v in micro.items()})  # fmt: skip
