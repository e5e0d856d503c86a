"""Made-up samples for the checks: as an honest machine gives them, and with the errors that they are for."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from service.selftest.cross_check_perf import Shares
from service.selftest.floors import WIDTHS
from service.selftest.plain_kernels import PHASES, PLAIN, Place
from service.statistics.choice import compare

MODES = ("eager", "no_grad", "inference_mode", "compiled", "reduce-overhead")
LADDER = {"eager": 1.5e-3, "no_grad": 1.2e-3, "inference_mode": 1e-3, "compiled": 0.4e-3}
LOADS = (1e6, 4e6, 9e6, 16e6)
ADDED = 1e-3
JITTER = 0.004

Found = dict[Any, list[Any]]


class Failure(NamedTuple):
    """Samples with an error, and the beginnings of the names of all rows that must fail for it."""

    error: str
    found: Found
    rows: tuple[str, ...]


def rounds(value: float, seed: object = "", count: int = 24) -> list[float]:
    """`count` samples within half a percent of `value`."""
    random = Random(f"{value}/{seed}")
    return [value * (1 + random.uniform(-JITTER, JITTER)) for _ in range(count)]


def ladder(floors: dict[str, float]) -> Found:
    return {mode: rounds(seconds) for mode, seconds in floors.items()}


def widths(widest: float) -> Found:
    """Floors that are equal but for the largest width, whose is `widest` times as long."""
    return {
        (mode, width): rounds(1e-3 * (widest if width == WIDTHS[-1] else 1), (mode, width))
        for mode in MODES
        for width in WIDTHS
    }


def intercept(floor_share: float) -> Found:
    """Steps of 1 ms without work, and a floor that reads `floor_share` of it."""
    found: Found = {}
    for mode in MODES:
        found |= {(mode, load): rounds(1e-3 + 1e-10 * load, mode) for load in LOADS}
        found[mode, None] = rounds(1e-3 * floor_share, mode)
    return found


def perf(twin: float) -> Found:
    """Windows in which perf sees 48 % in kernels, and the twin `twin`."""
    return {mode: [Shares(a, b) for a, b in zip(rounds(twin), rounds(0.48), strict=True)] for mode in MODES}


def plain(eager_wall: float) -> Found:
    """Equal kernels of 2 ms, with floors that fall; eager's walls are `eager_wall` times what they are."""
    found: Found = {}
    for place in [Place(mode, phase, bucket) for mode in PLAIN for phase in PHASES for bucket in (1, 16)]:
        floor = LADDER[place.mode]
        wall = (floor + 2e-3) * (eager_wall if place.mode == "eager" else 1)
        found |= {(place, "wall"): rounds(wall, place), (place, "floor"): rounds(floor, place)}
    return found


def injected(step: float, floor: float) -> Found:
    """Steps that grow by `step` of what was added, and floors by `floor` of it."""
    found: Found = {}
    for mode in ("eager", "compiled"):
        found |= {(mode, "plain"): rounds(2e-3, mode), (mode, "plain_floor"): rounds(1e-3, mode)}
        found[mode, "more"] = rounds(2e-3 + step * ADDED, mode)
        found[mode, "more_floor"] = rounds(1e-3 + floor * ADDED, mode)
        found[mode, "added"] = rounds(ADDED, mode)
    return found


def cuda(ours: float = 1.0, twin: float = 1.0, launches: float = 1.0) -> Found:
    """Kernel seconds over the profiler's, the twin over measured dispatch, launches per replayed step."""
    found: Found = {("graph_launches", "reduce-overhead"): [launches] * 5}
    for mode in MODES:
        found |= {("ours", mode): [ours * 1e-3], ("profiler", mode): [1e-3]}
        found |= {("twin", mode): rounds(twin * 1e-3, mode), ("real", mode): rounds(1e-3, mode)}
    return found


def parts(engine: float = 0.6e-3, **changes: float) -> Found:
    """Requests of 4 ms whose parts sum up, and the engine's seconds outside its steps."""
    timings = {
        "queue_seconds": 0.0, "dispatch_seconds": 2e-3, "kernel_seconds": 1e-3, "sync_wait_seconds": None,
        "other_seconds": 1e-3, "total_seconds": 4e-3, "border_seconds": 3e-4, "tokenise_seconds": 1e-4,
    } | changes  # fmt: skip
    requests: Found = {(mode, "request"): [timings] * 20 for mode in MODES}
    return requests | {(mode, "engine"): [engine] for mode in MODES}


def concurrency(ratio: float) -> Found:
    found: Found = {("seconds", 1): rounds(1e-3), ("seconds", 8): rounds(1e-3 * ratio, 8)}
    return found | {(what, users): [1.0] * 24 for what in ("switches", "steps") for users in (1, 8)}


def itself(ratio: float) -> Found:
    """Forty comparisons of two arms, the second of which takes `ratio` times as long."""

    def arm(seed: object, seconds: float) -> dict[int, float]:
        return dict(enumerate(rounds(seconds, seed, 8)))

    return {"comparisons": [compare(arm((n, 0), 1e-3), arm((n, 1), 1e-3 * ratio)) for n in range(40)]}


def twice(shift: float) -> Found:
    """Ten cells whose log speed-ups differ by `shift` between two sweeps."""
    return {f"cell {n}": [shift + 0.01 * (-1) ** number for number in range(8)] for n in range(10)}


HONEST: dict[str, Found] = {
    "ladder": ladder(LADDER),
    "widths": widths(1.0),
    "intercept": intercept(0.95),
    "perf": perf(0.5),
    "plain-kernels": plain(1.0),
    "kernel": injected(step=1.0, floor=0.0),
    "host": injected(step=1.0, floor=1.0),
    "own-work": {"own": rounds(25e-6)},
    "instrumentation": {"full": rounds(30.03e-3, "full"), "off": rounds(30e-3, "off")},
    "cuda": cuda(),
    "parts": parts(),
    "scrape": {"seconds": rounds(4e-3), "bytes": [200_000.0] * 24},
    "concurrency": concurrency(1.0),
    "eager-eager": itself(1.0),
    "twice": twice(0.0),
}
"""Samples by check in which every row passes."""

NEGATIVE = parts(kernel_seconds=-1e-3, total_seconds=2e-3)

FAILURES: dict[str, list[Failure]] = {
    "ladder": [
        Failure("rungs that add work", ladder(dict(zip(LADDER, (4e-4, 5e-4, 6e-4, 7e-4), strict=True))),
                ("floor of",)),
    ],
    "widths": [
        Failure("kernels of the twin that take time", widths(1.3), ("floor at widths",)),
        Failure("a twin that is not hollow at small widths", widths(0.7), ("floor at widths",)),
    ],
    "intercept": [
        Failure("a floor with warm caches", intercept(0.6), ("intercept over four widths",)),
        Failure("a floor that has work in it", intercept(1.5), ("intercept over four widths",)),
    ],
    "perf": [
        Failure("host code booked as kernel", perf(0.63), ("kernel share",)),
        Failure("kernels booked as host", perf(0.33), ("kernel share",)),
    ],
    "plain-kernels": [Failure("page faults of a tape booked as kernel", plain(1.2), ("kernel time equal",))],
    "kernel": [
        Failure("a hollow kernel that grows with the real one", injected(step=1.0, floor=0.2), ("a kernel",)),
        Failure("a kernel that is outside the clock", injected(step=0.0, floor=0.0),
                ("a kernel 8 times longer: kernel",)),
    ],
    "host": [
        Failure("a twin without the added work", injected(step=1.0, floor=0.0), ("more host work",)),
        Failure("a twin that does it twice", injected(step=1.0, floor=2.0), ("more host work",)),
        Failure("kernels that grow with host work", injected(step=1.3, floor=1.0),
                ("more host work per step: kernel",)),
    ],
    "own-work": [Failure("a slow loop between steps", {"own": rounds(45e-6)}, ("engine's own work",))],
    "instrumentation": [
        Failure("bookkeeping of 1 ms in a request of 30",
                {"full": rounds(31e-3, "full"), "off": rounds(30e-3, "off")},
                ("instrumentation full / off",)),
    ],
    "cuda": [
        Failure("kernels missing in the trace", cuda(ours=0.9), ("kernel / profiler's own sum",)),
        Failure("a twin on another attention backend", cuda(twin=1.3), ("twin's floor",)),
        Failure("graphs that are skipped", cuda(launches=90.0), ("reduce-overhead: one graph launch",)),
    ],
    "parts": [
        Failure("a part that is negative", NEGATIVE, ("no part of a request is negative",)),
        Failure("parts that do not sum up", parts(total_seconds=5e-3), ("parts sum to the total",)),
        Failure("a piece that is missing", parts(border_seconds=1e-5), ("other's pieces",)),
        Failure("work that is counted twice", parts(engine=0.9e-3), ("other's pieces",)),
    ],
    "scrape": [
        Failure("text written anew per scrape", {"seconds": rounds(15e-3), "bytes": [200_000.0] * 24},
                ("time of a /metrics scrape",)),
    ],
    "concurrency": [Failure("a front on the engine's core", concurrency(1.2), ("step time, concurrency",))],
    "eager-eager": [Failure("arms that are not alike", itself(1.1), ("eager against eager",))],
    "twice": [Failure("ratios that drift between sweeps", twice(0.1), ("the same sweep twice",))],
}  # fmt: skip
"""By check, samples with the errors that it is for."""
