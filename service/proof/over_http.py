"""Checks over HTTP of a running service: the parts of a request, what it adds to a model call, step time
under load, eager against itself, and the shares that it answers with.

They send their requests from a process without torch, except the last check, which runs steps as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from service.measure.rounds import Log, in_rounds
from service.proof.rows import Check, NotMeasurableError, Property, Row, count_row, difference_of_shares
from service.proof.running_service import NEW_TOKENS, Connection, RunningService, bare_engine, bare_route
from service.records import PHASES, Phase
from service.statistics.choice import Comparison, compare
from service.statistics.intervals import median_interval

if TYPE_CHECKING:
    from service.proof.requests import SampledRequests

Timings = dict[str, Any]


# The parts of a request: none is negative, and `other`, which closes the sum, is that of its pieces.

PARTS_REQUESTS = 20
PARTS_UNCOUNTED = 2
PARTS = ("queue_seconds", "dispatch_seconds", "kernel_seconds", "sync_wait_seconds", "other_seconds")
PIECES = ("border_seconds", "tokenise_seconds", "front_seconds")
"""Pieces of `other` that a response may contain."""

SMALLEST = Property("no part of a request is negative", "≥ 0", least=0, unit="s")
OTHER = Property("other's pieces, measured apart, / other", "within 10 %", 0.9, 1.1)


def measure_parts(service: RunningService, log: Log) -> dict[tuple[str, str], list[Any]]:
    """By mode, timings of requests (`request`) and seconds of an engine outside its steps (`engine`).

    In turn, because a minute later the machine may differ. The engine is one without a service, on the same
    cores: intake, buffers, layout, text, book-keeping.
    """
    variants: dict[tuple[str, str], Callable[[], Any]] = {}
    with bare_engine(service, log) as engine, service.connection() as connection:
        for mode in service.settings.modes:
            variants[mode, "request"] = partial(connection.generate, mode)
            variants[mode, "engine"] = partial(engine.overhead_seconds, mode)
        rounds = in_rounds(variants, PARTS_UNCOUNTED + PARTS_REQUESTS, "parts", log)
    return {variant: found[PARTS_UNCOUNTED:] for variant, found in rounds.items()}


def judge_parts(found: Mapping[tuple[str, str], list[Any]]) -> list[Row]:
    modes = list(dict.fromkeys(mode for mode, _ in found))
    requests = [timings for mode in modes for timings in found[mode, "request"]]
    parts = [(timings.get(name), name) for timings in requests for name in (*PARTS, *PIECES)]
    seconds, name = min((seconds, name) for seconds, name in parts if seconds is not None)
    note = f"smallest of {len(requests)} requests: {name} {seconds * 1e6:.0f} µs"
    pieces = [_pieces(mode, found[mode, "request"], found[mode, "engine"]) for mode in modes]
    return [SMALLEST.exactly(seconds, "", note), *pieces]


def _pieces(mode: str, requests: list[Timings], engine: list[float]) -> Row:
    """The sum of all pieces, of the response and measured apart, over `other`, paired by round."""
    pieces = {name: [t[name] for t in requests] for name in PIECES if name in requests[0]}
    pieces["engine outside its steps"] = engine
    other = [timings["other_seconds"] for timings in requests]
    ratios = [sum(parts) / whole for *parts, whole in zip(*pieces.values(), other, strict=True)]
    micros = {name.removesuffix("_seconds"): median(found) * 1e6 for name, found in pieces.items()}
    shown = " + ".join(f"{name} {value:.0f}" for name, value in micros.items())
    note = f"other {median(other) * 1e6:.0f} µs; {shown} = {sum(micros.values()):.0f}"
    return OTHER.within(median_interval(ratios), f": {mode}", note)


# What the service adds to the model call of a request: in seconds, and beside a bare route of FastAPI

ADDED_ROUNDS = 40
ADDED_REQUESTS = 5
ADDED_UNCOUNTED = 2
"""First rounds that are run and not counted."""

ADDED_MODE = "inference_mode"
ADDS = Property("the service adds to a model call, concurrency 1", "median ≤ 1.2 ms", most=1.2e-3, unit="s")
ADDS_RATIO = Property("what the service adds / a bare FastAPI route", "≤ 1.2", most=1.2)


def measure_added(service: RunningService, log: Log) -> dict[str, list[float]]:
    """Per round, each the median of some requests: seconds that the `service` adds to its model calls, which
    are the client's latency less the wall time of all steps, and that a `bare` route takes to answer the same
    bytes with the same JSON.

    The two take turns request by request, so that both find the caches as a model call leaves them.
    """
    modes = service.settings.modes
    mode = ADDED_MODE if ADDED_MODE in modes else modes[-1]
    found: dict[str, list[float]] = {"service": [], "bare": []}
    with service.connection() as served:
        answer, _ = served.answer(mode)
        with bare_route(answer, service.folder) as url, closing(Connection(url)) as bare:
            for number in range(ADDED_UNCOUNTED + ADDED_ROUNDS):
                log(f"round {number + 1} of {ADDED_UNCOUNTED + ADDED_ROUNDS}")
                pairs = [(served.generate(mode), bare.generate(mode)) for _ in range(ADDED_REQUESTS)]
                found["service"].append(median(map(_added_seconds, [timings for timings, _ in pairs])))
                found["bare"].append(median(float(timings["latency_seconds"]) for _, timings in pairs))
    return {variant: seconds[ADDED_UNCOUNTED:] for variant, seconds in found.items()}


def _added_seconds(timings: Timings) -> float:
    walls = sum(timings[phase]["wall_seconds"] for phase in PHASES)
    return float(timings["latency_seconds"] - walls)


def judge_added(found: Mapping[str, list[float]]) -> list[Row]:
    service, bare = found["service"], found["bare"]
    beside = f"the bare route answers with the same JSON in {median(bare) * 1e3:.2f} ms"
    note = f"{median(service) * 1e3:.2f} ms, the client on the front's cores"
    return [ADDS.within(median_interval(service), "", note), ADDS_RATIO.ratio(service, bare, note=beside)]


# Under load: step time at concurrency 8 against 1

CONCURRENCY = 8
CONCURRENCY_ROUNDS = 16
REQUESTS = 8

STEP_TIME = Property(f"step time, concurrency {CONCURRENCY} / 1", "≤ 1.05", most=1.05)


def measure_concurrency(service: RunningService, log: Log) -> dict[int, list[float]]:
    """By concurrency, seconds per decode step of a round's median request, in the mode with the shortest."""

    def user(requests: int) -> list[Timings]:
        with service.connection() as connection:
            return [connection.generate(service.settings.modes[-1]) for _ in range(requests)]

    def at(users: int) -> float:
        with ThreadPoolExecutor(users) as pool:
            found = pool.map(user, [REQUESTS // users] * users)
            decodes = [timings["decode"] for of_user in found for timings in of_user]
        return float(median(decode["wall_seconds"] / decode["steps"] for decode in decodes))

    variants = {users: partial(at, users) for users in (1, CONCURRENCY)}
    return in_rounds(variants, CONCURRENCY_ROUNDS, "concurrency", log)


def judge_concurrency(found: Mapping[int, list[float]]) -> list[Row]:
    alone, loaded = found[1], found[CONCURRENCY]
    note = f"{median(loaded) * 1e6:.0f} µs against {median(alone) * 1e6:.0f} µs per decode step"
    return [STEP_TIME.ratio(loaded, alone, note=note)]


# A/A test: the reports' comparison finds no difference of a mode to itself

REPEATS = 40
NEEDED_ALIKE = 35 / 40
ITSELF_REQUESTS = 2
ITSELF_TOKENS = 6


def measure_itself(service: RunningService, log: Log) -> dict[str, list[Comparison]]:
    """Eager compared with eager REPEATS times, the two shuffled in every round."""
    found = []
    with service.connection() as connection:

        def latency() -> float:
            answers = [connection.generate(BASELINE, ITSELF_TOKENS) for _ in range(ITSELF_REQUESTS)]
            return float(median(timings["latency_seconds"] for timings in answers))

        for repeat in range(REPEATS):
            log(f"comparison {repeat + 1} of {REPEATS}")
            one, other = in_rounds({0: latency, 1: latency}, MINIMUM_ROUNDS, f"itself/{repeat}").values()
            found.append(compare(dict(enumerate(one)), dict(enumerate(other))))
    return {"comparisons": found}


def judge_itself(found: Mapping[str, list[Comparison]]) -> list[Row]:
    comparisons = found["comparisons"]
    alike = sum(comparison.word == "no detectable difference" for comparison in comparisons)
    spread = max(abs(math.log(comparison.speedup.value)) for comparison in comparisons)
    needed = math.ceil(NEEDED_ALIKE * len(comparisons))
    note = f"largest ratio seen {math.exp(spread):.3f}; {MINIMUM_ROUNDS} rounds of {ITSELF_REQUESTS} requests"
    return [count_row("eager against eager: no detectable difference", alike, len(comparisons), needed, note)]


# The shares that a running service answers with, beside samples taken in this process. Both run the same
# requests in turn, on the cores of the engine, which idles while this process samples. Here a minimal loop
# runs the steps, and the check labels the sampler itself: nothing that serving keeps of its samples
# (their labels, the newest of each step, what an answer makes of them) is in it.

BUCKET = 1
SERVED_ROUNDS = 8
SERVED_MODES = ("eager", "compiled")
ALIKE = Property(
    "kernel share that a service answers with less that in process", "± 0.05", -0.05, 0.05, "share"
)


class Kind(NamedTuple):
    """Requests whose answer has the share of `phase`, and for how long a round has them, one at least."""

    name: str
    phase: Phase
    new_tokens: int
    sample: bool
    seconds: float


KINDS = (
    Kind("traffic", "decode", NEW_TOKENS, False, 2.0),
    Kind("traffic", "prefill", 1, True, 1.0),
    Kind("sampled request", "decode", 384, True, 0.0),
)
"""In this order: what is sampled faster is in the newest samples of the traffic that follows."""


class Share(NamedTuple):
    """The kernels' share of a step, and the samples of kernel and host that it rests on."""

    kernel: float
    samples: int


def measure_served(service: RunningService, log: Log) -> dict[tuple[Kind, str, str], list[Share]]:
    """Shares by round, of the `service` and of this `process`; of the service's traffic only the last answer,
    which rests on what all before it left.

    Raises NotMeasurableError where the service does not sample, or too few samples fall into a request.
    """
    modes = [mode for mode in SERVED_MODES if mode in service.settings.modes]
    if service.no_samples:
        raise NotMeasurableError(service.no_samples)
    # Only now: the other checks over HTTP send their requests from a process without torch.
    from service.proof.requests import SampledRequests

    log("building steps in this process")
    alone = msgspec.structs.replace(service.settings.engine_settings(""), batch_sizes=[BUCKET])
    requests = SampledRequests(alone, service.cpus, modes)
    found: dict[tuple[Kind, str, str], list[Share]] = {}
    for kind in KINDS:
        variants: dict[tuple[Kind, str, str], Callable[[], Share]] = {}
        for mode in modes:
            variants[kind, mode, "service"] = partial(_answered, service, kind, mode)
            variants[kind, mode, "process"] = partial(_here, requests, kind, mode)
        found |= in_rounds(variants, SERVED_ROUNDS, f"served/{kind.name}/{kind.phase}", log)
    return {
        variant: shares[-1:] if (variant[0].name, variant[2]) == ("traffic", "service") else shares
        for variant, shares in found.items()
    }


def _answered(service: RunningService, kind: Kind, mode: str) -> Share:
    """What the last of the requests of a round answers. Raises NotMeasurableError where its steps are too
    short for samples of its own, ValueError where they are long enough and it has none.
    """
    from service.engine.step_shares import ENOUGH  # with torch, which only this check's process has
    from service.measure.cpu_sampler import SAMPLES_PER_SECOND

    # A connection of their own: the service closes one that idles while this process runs steps.
    with service.connection() as connection:
        ask = partial(connection.generate, mode, kind.new_tokens, sample=kind.sample)
        until = perf_counter() + kind.seconds
        timings = ask()
        while perf_counter() < until:
            timings = ask()
    phase: Mapping[str, Any] = timings[kind.phase]
    if kind.name != "traffic" and phase["samples_of"] != "request":
        expected = phase["wall_seconds"] * SAMPLES_PER_SECOND
        if expected >= 2 * ENOUGH:
            raise ValueError(
                f"{mode} answers the traffic's split with some {expected:.0f} samples of its own"
            )
        raise NotMeasurableError(f"a request of {kind.new_tokens} tokens in {mode} has too few samples")
    samples = phase["kernel_samples"] + phase["host_samples"]
    return Share(phase["kernel_seconds"] / phase["wall_seconds"], samples)


def _here(requests: SampledRequests, kind: Kind, mode: str) -> Share:
    """Of requests in this process, which are sampled more often, and so for less time."""
    counts = requests.run(mode, kind.new_tokens, kind.seconds / 2)[kind.phase]
    samples = counts.kernel + counts.host
    return Share(counts.kernel / max(samples, 1), samples)


def judge_served(found: Mapping[tuple[Kind, str, str], list[Share]]) -> Iterator[Row]:
    """Per kind and mode, the difference of the shares, all rounds together."""
    for kind, mode in dict.fromkeys((kind, mode) for kind, mode, _ in found):
        served, own = found[kind, mode, "service"], found[kind, mode, "process"]
        (count, total), (other, others) = (
            (sum(share.kernel * share.samples for share in shares), sum(share.samples for share in shares))
            for shares in (served, own)
        )
        name = f": {kind.name}, {mode}, {kind.phase}, batch {BUCKET}"
        note = f"{count / total:.3f} of {total:,} samples, {other / others:.3f} of {others:,} in process"
        yield ALIKE.within(difference_of_shares(count, total, other, others), name, note)


CHECKS: dict[str, Check] = {
    "parts": Check(measure_parts, judge_parts),
    "added": Check(measure_added, judge_added),
    "concurrency": Check(measure_concurrency, judge_concurrency),
    "eager-eager": Check(measure_itself, judge_itself),
    "served-samples": Check(measure_served, judge_served, (ALIKE,)),
}
"""By name, in the order in which they run: last what runs steps in this process as well."""
