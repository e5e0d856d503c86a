"""Made-up samples for the checks: as an honest machine gives them, and with the errors that they are for."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from service.selftest import sampling_rate
from service.selftest.asked_work import Arm
from service.selftest.floors import WIDTHS
from service.selftest.instructions import Counted
from service.selftest.places import PHASES, Place
from service.selftest.plain_kernels import PLAIN
from service.selftest.served_samples import Seen
from service.statistics.choice import compare
from service.step.native.perf_events import SAMPLES_PER_SECOND

MODES = ("eager", "no_grad", "inference_mode", "compiled", "reduce-overhead")
LADDER = {"eager": 1.5e-3, "no_grad": 1.2e-3, "inference_mode": 1e-3, "compiled": 0.4e-3}
LOADS = (1e6, 4e6, 9e6, 16e6)
ADDED = 3e-3
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


def widths(half: float) -> Found:
    """Floors that are equal but for that at half the width, which is `half` times as long."""
    return {
        (mode, width): rounds(1e-3 * (half if width == WIDTHS[0] else 1), (mode, width))
        for mode in MODES
        for width in WIDTHS
    }


def intercept(twin: float, stacks: float) -> Found:
    """Steps of 1 ms without work, and witnesses that read these shares of it."""
    found: Found = {}
    for mode in MODES:
        found |= {(mode, load): rounds(1e-3 + 1e-10 * load, mode) for load in LOADS}
        found |= {(mode, "twin"): rounds(1e-3 * twin, mode), (mode, "stacks"): rounds(1e-3 * stacks, mode)}
    return found


def stacks(twin: float) -> Found:
    """Steps whose sampled dispatch is 1 ms, and twins that read `twin` of it."""
    found: Found = {}
    for place in [Place(mode, phase, bucket) for mode in MODES for phase in PHASES for bucket in (1, 16)]:
        found |= {(place, "twin"): rounds(twin * 1e-3, place), (place, "stacks"): rounds(1e-3, place)}
    return found


def plain(eager: float) -> Found:
    """Equal kernels of 2 ms, but for eager's, which are `eager` times as long."""
    places = [Place(mode, phase, bucket) for mode in PLAIN for phase in PHASES for bucket in (1, 16)]
    return {
        (place, "stacks"): rounds(2e-3 * (eager if place.mode == "eager" else 1), place) for place in places
    }


def instructions(eager_kernel: int = 500_000, leaked: float = 0.01, **host: int) -> Found:
    """Steps of half a million instructions in kernels, but for eager's, and the host's of each mode.

    At batch 16 the last mode's host has `leaked` of what its kernels have more.
    """
    counted = {mode: int(seconds * 1e9) for mode, seconds in LADDER.items()} | host
    found: Found = {
        (mode, 1): [Counted(eager_kernel if mode == "eager" else 500_000, instructions)]
        for mode, instructions in counted.items()
    }
    mode, instructions = next(reversed(counted.items()))
    return found | {(mode, 16): [Counted(1_500_000, instructions + round(leaked * 1_000_000))]}


def injected(kernel: float, dispatch: float) -> Found:
    """Steps whose parts grow by these shares of what was added."""
    found: Found = {}
    for mode in ("eager", "compiled"):
        found |= {(mode, "plain_kernel"): rounds(1e-3, mode), (mode, "plain_dispatch"): rounds(1e-3, mode)}
        found[mode, "more_kernel"] = rounds(1e-3 + kernel * ADDED, mode)
        found[mode, "more_dispatch"] = rounds(1e-3 + dispatch * ADDED, mode)
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
    return requests | {(mode, "engine"): [engine] * 20 for mode in MODES}


def added(seconds: float, bare: float = 1.0e-3) -> Found:
    """A service that adds `seconds`, beside a route that takes `bare`."""
    return {"service": rounds(seconds, "service"), "bare": rounds(bare, "bare")}


def served_samples(request: float, of_time: float = 1.0) -> Found:
    """Dispatch is half of steps in a row and `request` times as much of requests, whose steps have `of_time`
    of the samples that their time should have.
    """
    return {
        (mode, phase, arm): [
            Seen(0.5 * share, time)
            for share, time in zip(
                rounds(request if arm == "request" else 1.0, (mode, phase, arm)),
                rounds(of_time, (mode, phase)),
                strict=True,
            )
        ]
        for mode in MODES
        for phase in PHASES
        for arm in ("request", "steps")
    }


def names(unnamed: int) -> Found:
    """Steps of 400 samples a round; at the largest batch so many of these are of functions without a name."""
    return {
        Place(mode, phase, bucket): [(unnamed if bucket == 16 else 0, 400)] * 8
        for mode in MODES
        for phase in PHASES
        for bucket in (1, 16)
    }


def minimal_loop(ratio: float) -> Found:
    """Requests of 30 ms in a minimal loop, `ratio` times as long in the service's code."""
    return {
        (mode, arm): rounds(30e-3 * (ratio if arm == "service" else 1), (mode, arm))
        for mode in MODES
        for arm in ("service", "minimal")
    }


def saturation(share: float) -> Found:
    """Bursts of a second, of which this share is steps."""
    return {"elapsed": rounds(1.0, "elapsed"), "steps": rounds(share, "steps")}


def concurrency(ratio: float) -> Found:
    found: Found = {("seconds", 1): rounds(1e-3), ("seconds", 8): rounds(1e-3 * ratio, 8)}
    return found | {(what, users): [1.0] * 24 for what in ("switches", "steps") for users in (1, 8)}


def itself(ratio: float) -> Found:
    """Forty comparisons of two arms, the second of which takes `ratio` times as long."""

    def arm(seed: object, seconds: float) -> dict[int, float]:
        return dict(enumerate(rounds(seconds, seed, 8)))

    return {"comparisons": [compare(arm((n, 0), 1e-3), arm((n, 1), 1e-3 * ratio)) for n in range(40)]}


def rates(fewer: float) -> Found:
    """Steps half of whose samples are dispatch's, and `fewer` of those that are sampled less often."""
    return {
        (Place(mode, "decode", bucket), rate): [
            sampling_rate.Seen(share, 1.2) for share in rounds(right, (mode, rate))
        ]
        for mode in ("eager", "compiled")
        for bucket in (1, 16)
        for rate, right in ((SAMPLES_PER_SECOND, 0.5), (sampling_rate.FEWER, fewer))
    }


def asked(decode: float = 1.0, prefill: float = 0.5, batch: int = 16) -> Found:
    """Steps of which the one in the longer context takes `decode` of the other, half a chunk `prefill`."""
    steps = {
        ("decode", 512): 4e-3 * decode,
        ("decode", 128): 4e-3,
        ("prefill", 30): 0.06 * prefill,
        ("prefill", 64): 0.06,
    }
    return {
        Arm(mode, phase, size, batch): rounds(seconds, (mode, phase, size))  # type: ignore[arg-type]
        for mode in MODES
        for (phase, size), seconds in steps.items()
    }


def twice(shift: float) -> Found:
    """Ten cells whose log speed-ups differ by `shift` between two sweeps."""
    return {f"cell {n}": [shift + 0.01 * (-1) ** number for number in range(8)] for n in range(10)}


HONEST: dict[str, Found] = {
    "ladder": ladder(LADDER),
    "widths": widths(1.0),
    "intercept": intercept(twin=0.85, stacks=1.05),
    "names": names(1),
    "stacks": stacks(0.85),
    "plain-kernels": plain(1.0),
    "instructions": instructions(500_500),
    "kernel": injected(kernel=1.0, dispatch=0.0),
    "host": injected(kernel=0.0, dispatch=1.0),
    "sampling-rate": rates(0.49),
    "served-samples": served_samples(1.02),
    "asked-work": asked(),
    "own-work": {"own": rounds(25e-6)},
    "instrumentation": {"full": rounds(30.03e-3, "full"), "off": rounds(30e-3, "off")},
    "minimal-loop": minimal_loop(1.01),
    "cuda": cuda(),
    "parts": parts(),
    "added": added(1.0e-3),
    "saturation": saturation(0.98),
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
        Failure("kernels of the twin that take time", widths(0.7), ("floor at width",)),
        Failure("a twin that takes another path at half its width", widths(1.3), ("floor at width",)),
    ],
    "intercept": [
        Failure("witnesses with warm caches", intercept(0.6, 0.7), ("intercept over four widths",)),
        Failure("witnesses that have work in them", intercept(1.4, 1.5), ("intercept over four widths",)),
    ],
    "stacks": [
        Failure("a twin that has work in it", stacks(1.3), ("dispatch, twin / stacks",)),
        Failure("host functions classed as kernel", stacks(1.2), ("dispatch, twin / stacks",)),
    ],
    "plain-kernels": [Failure("page faults of a tape booked as kernel", plain(1.2), ("kernel time equal",))],
    "instructions": [
        Failure("a tape's functions classed as kernel", instructions(520_000), ("instructions in kernels",)),
        Failure("rungs that add work",
                instructions(eager=400_000, no_grad=500_000, inference_mode=500_000, compiled=700_000),
                ("host instructions of",)),
        Failure("kernels' functions classed as host", instructions(leaked=0.06),
                ("host instructions as the batch grows",)),
        Failure("the host's functions classed as kernel where the batch is large", instructions(leaked=-0.06),
                ("host instructions as the batch grows",)),
    ],
    "kernel": [
        Failure("element functions classed as host", injected(kernel=0.8, dispatch=0.2), ("a kernel",)),
        Failure("a kernel that is outside the clock", injected(kernel=0.0, dispatch=0.0),
                ("a kernel 8 times longer: kernel",)),
    ],
    "host": [
        Failure("the interpreter classed as kernel", injected(kernel=0.2, dispatch=0.8), ("more host work",)),
        Failure("host work that is done twice", injected(kernel=0.0, dispatch=2.0),
                ("more host work per step: dispatch",)),
        Failure("kernels that grow with host work", injected(kernel=0.3, dispatch=1.0),
                ("more host work per step: kernel",)),
    ],
    "sampling-rate": [
        Failure("interrupts that slow the host alone", rates(0.4), ("sampled a fifth as often",)),
        Failure("interrupts that slow kernels alone", rates(0.6), ("sampled a fifth as often",)),
    ],
    "names": [Failure("a library whose kernels have no names", names(180), ("samples in functions",))],
    "served-samples": [
        Failure("samples of prefill booked into short decodes", served_samples(0.8),
                ("dispatch of a sampled request",)),
        Failure("host work between steps, a fifth as long, counted as dispatch", served_samples(1.2),
                ("dispatch of a sampled request",)),
        Failure("steps and samples by clocks that differ", served_samples(1.0, of_time=0.5),
                ("samples within a request's steps",)),
        Failure("samples from outside of the steps", served_samples(1.0, of_time=1.1),
                ("samples within a request's steps",)),
    ],
    "asked-work": [
        Failure("attention over the whole cache", asked(decode=1.8), ("decode in a longer context",)),
        Failure("prompts padded to whole chunks", asked(prefill=1.0), ("prefill of half a chunk",)),
    ],
    "own-work": [Failure("a slow loop between steps", {"own": rounds(45e-6)}, ("engine's own work",))],
    "instrumentation": [
        Failure("bookkeeping of 1 ms in a request of 30",
                {"full": rounds(31e-3, "full"), "off": rounds(30e-3, "off")},
                ("instrumentation full / off",)),
    ],
    "minimal-loop": [
        Failure("bookkeeping of 2 ms in a request of 30", minimal_loop(32 / 30), ("the service's code",)),
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
    "added": [
        Failure("a front that does its work twice", added(2.4e-3),
                ("the service adds", "what the service adds")),
        Failure("a slow engine behind a fast front", added(1.3e-3, bare=1.2e-3), ("the service adds",)),
        Failure("a fast machine on which the service is slow", added(0.6e-3, bare=0.4e-3),
                ("what the service adds",)),
    ],
    "saturation": [
        Failure("an engine that waits for the front between two jobs", saturation(0.9), ("throughput at",)),
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
