"""Checks over HTTP of a running service: the parts of a request, what it adds to a model call, step time and
throughput under load, equal sweeps, and the shares that it answers with.

They send their requests from a process without torch, except the last check, which runs steps as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from rich.console import Console

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS, Plan, ladder_cells
from loadtests.run.rows import read_rows
from loadtests.run.sweep import run_sweep
from service.front.settings import Settings
from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.proof.bare_route import bare_route
from service.proof.rows import (
    Check,
    NotMeasurableError,
    Numbers,
    Property,
    Row,
    count_row,
    difference_of_shares,
)
from service.proof.running_service import NEW_TOKENS, BareEngine, Connection, RunningService
from service.records import PHASES, Phase
from service.statistics.choice import Comparison, compare, paired
from service.statistics.intervals import mean_interval, median_interval

if TYPE_CHECKING:
    from service.proof.requests import SampledRequests

Timings = dict[str, Any]


def _walls(timings: Mapping[str, Any]) -> float:
    return float(sum(timings[phase]["wall_seconds"] for phase in PHASES))


# The parts of a request: none is negative, and `other`, which closes the sum, is that of its pieces.

PARTS_REQUESTS = 20
PARTS_UNCOUNTED = 2
PARTS = ("queue_seconds", "dispatch_seconds", "kernel_seconds", "sync_wait_seconds", "other_seconds")
PIECES = ("border_seconds", "tokenise_seconds", "front_seconds")
"""Pieces of `other` that a response may contain."""

SMALLEST = Property("no part of a request is negative", "≥ 0", least=0, unit="s")
OTHER = Property("other's pieces, measured apart, / other", "within 10 %", 0.9, 1.1)

StartEngine = Callable[[list[int], Log], AbstractContextManager[BareEngine]]
"""Starts an engine without a service on the given cores; it ends with the block."""


def parts_check(start_engine: StartEngine) -> Check[RunningService, tuple[str, str], Any]:
    """The check of the parts; the engine's time outside its steps is that of `start_engine`'s."""

    def measure(service: RunningService, log: Log) -> dict[tuple[str, str], list[Any]]:
        """By mode, timings of requests (`request`) and seconds of an engine outside its steps (`engine`).

        In turn, because a minute later the machine may differ. The engine is one without a service, on the
        same cores: intake, buffers, layout, text, book-keeping.
        """
        arms: dict[tuple[str, str], Callable[[], Any]] = {}
        with start_engine(service.cpus, log) as engine, service.connection() as connection:
            for mode in service.modes:
                arms[mode, "request"] = partial(connection.generate, mode)
                arms[mode, "engine"] = partial(engine.overhead_seconds, mode)
            rounds = in_rounds(arms, PARTS_UNCOUNTED + PARTS_REQUESTS, "parts", log)
        return {arm: found[PARTS_UNCOUNTED:] for arm, found in rounds.items()}

    return Check(measure, judge_parts)


def judge_parts(found: Mapping[tuple[str, str], list[Any]]) -> list[Row]:
    """Over all requests: the signs of the parts. Per mode: `other` against its pieces."""
    modes = list(dict.fromkeys(mode for mode, _ in found))
    everything = [timings for mode in modes for timings in found[mode, "request"]]
    pieces = [_pieces(mode, found[mode, "request"], found[mode, "engine"]) for mode in modes]
    return [_smallest_part(everything), *pieces]


def _smallest_part(requests: list[Timings]) -> Row:
    smallest = {
        name: min(timings[name] for timings in requests)
        for name in (*PARTS, *PIECES)
        if all(timings.get(name) is not None for timings in requests)
    }
    name = min(smallest, key=lambda part: smallest[part])
    note = f"smallest of {len(requests)} requests: {name} {smallest[name] * 1e6:.0f} µs"
    return SMALLEST.exactly(smallest[name] >= 0, smallest[name], "", note)


def _pieces(mode: str, requests: list[Timings], engine: list[float]) -> Row:
    """The sum of all pieces, of the response and measured apart, over `other`, paired by round."""
    named = [name for name in (*PIECES, "other_seconds") if name in requests[0]]
    micro = {name: median(t[name] for t in requests) * 1e6 for name in named}
    pieces = {name.removesuffix("_seconds"): micro[name] for name in named[:-1]}
    pieces["engine outside its steps"] = median(engine) * 1e6
    ratios = [
        (sum(timings[name] for name in named[:-1]) + seconds) / timings["other_seconds"]
        for timings, seconds in zip(requests, engine, strict=True)
    ]
    shown = " + ".join(f"{name} {value:.0f}" for name, value in pieces.items())
    note = f"other {micro['other_seconds']:.0f} µs; {shown} = {sum(pieces.values()):.0f}"
    numbers = {"engine_seconds": engine, **{k: v / 1e6 for k, v in micro.items()}}
    return OTHER.within(median_interval(ratios), f": {mode}", note, numbers)


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
    mode = ADDED_MODE if ADDED_MODE in service.modes else service.modes[-1]
    found: dict[str, list[float]] = {"service": [], "bare": []}
    with TemporaryDirectory(prefix="launchbound-") as folder, service.connection() as served:
        answer, _ = served.answer(mode)
        with bare_route(answer, Path(folder)) as url, closing(Connection(url)) as bare:
            for number in range(ADDED_UNCOUNTED + ADDED_ROUNDS):
                log(f"round {number + 1} of {ADDED_UNCOUNTED + ADDED_ROUNDS}")
                pairs = [(served.generate(mode), bare.generate(mode)) for _ in range(ADDED_REQUESTS)]
                added = [float(timings["latency_seconds"] - _walls(timings)) for timings, _ in pairs]
                found["service"].append(median(added))
                found["bare"].append(median(float(timings["latency_seconds"]) for _, timings in pairs))
    return {arm: seconds[ADDED_UNCOUNTED:] for arm, seconds in found.items()}


def judge_added(found: Mapping[str, list[float]]) -> list[Row]:
    """The median round, and the median of the rounds' ratios."""
    service, bare = found["service"], found["bare"]
    added, alone = median_interval(service), median_interval(bare)
    low, high = added.low * 1e3, added.high * 1e3
    note = f"{added.value * 1e3:.2f} ms [{low:.2f}, {high:.2f}], the client on the front's cores"
    beside = f"the bare route answers with the same JSON in {alone.value * 1e3:.2f} ms"
    return [
        ADDS.within(added, "", note, {"seconds": service}),
        ADDS_RATIO.ratio("", beside, service=service, bare=bare),
    ]


ADDED = Check(measure_added, judge_added)


# Under load: step time at concurrency 8 against 1, time of a scrape, steps of a saturated engine

CONCURRENCY = 8
CONCURRENCY_ROUNDS = 16
REQUESTS = 8
SCRAPES = 40
LOADING_USERS = 4
SCRAPE_PAUSE_SECONDS = 0.1
SATURATING_USERS = 4
BURSTS = 12
BURSTS_UNCOUNTED = 1

STEP_TIME = Property(f"step time, concurrency {CONCURRENCY} / 1", "≤ 1.05", most=1.05)
SCRAPE_TIME = Property("time of a /metrics scrape under load", "median ≤ 10 ms", most=0.010, unit="s")
THROUGHPUT = Property(
    f"throughput at concurrency {SATURATING_USERS} / the same steps in a row", "≥ 0.95", least=0.95
)


class Load(NamedTuple):
    """A round at one concurrency: seconds per decode step of the median request, the counts of all."""

    seconds: float
    switches: int
    steps: int


def measure_concurrency(service: RunningService, log: Log) -> dict[int, list[Load]]:
    """By concurrency, in the mode whose steps are shortest."""

    def at(users: int) -> Load:
        found = _burst(service, users, max(1, REQUESTS // users))
        decodes = [timings["decode"] for timings in found]
        return Load(
            seconds=float(median(decode["wall_seconds"] / decode["steps"] for decode in decodes)),
            switches=sum(timings["involuntary_switches"] for timings in found),
            steps=sum(decode["steps"] for decode in decodes),
        )

    arms = {users: partial(at, users) for users in (1, CONCURRENCY)}
    return in_rounds(arms, CONCURRENCY_ROUNDS, "concurrency", log)


def judge_concurrency(found: Mapping[int, list[Load]]) -> list[Row]:
    """Decode wall per step at concurrency 8 over that at 1."""
    alone, loaded = ([load.seconds for load in found[users]] for users in (1, CONCURRENCY))
    switches = {users: sum(load.switches for load in loads) for users, loads in found.items()}
    steps = {users: sum(load.steps for load in loads) for users, loads in found.items()}
    shown = ", ".join(f"{switches[users]} in {steps[users]} steps at {users}" for users in found)
    numbers: Numbers = {
        "at_1_seconds": alone,
        "at_8_seconds": loaded,
        "switches_at_1": switches[1],
        "switches_at_8": switches[CONCURRENCY],
    }
    note = f"involuntary switches of the engine: {shown}"
    return [STEP_TIME.within(paired_median_ratio(loaded, alone), "", note, numbers)]


def _burst(service: RunningService, users: int, each: int) -> list[Timings]:
    """`users` requests in flight, `each` of one user after the other."""

    def user(_: int) -> list[Timings]:
        with service.connection() as connection:
            return [connection.generate(service.modes[-1]) for _ in range(each)]

    with ThreadPoolExecutor(users) as pool:
        return [timings for found in pool.map(user, range(users)) for timings in found]


def measure_scrape(service: RunningService, log: Log) -> dict[str, list[float]]:
    """`seconds` and `bytes` of GET /metrics as a client sees them, while requests are in flight."""
    found: dict[str, list[float]] = {"seconds": [], "bytes": []}
    with _loaded(service), service.connection() as connection:
        for number in range(SCRAPES):
            log(f"scrape {number + 1} of {SCRAPES}")
            began = perf_counter()
            status, body = connection.get("/metrics")
            found["seconds"].append(perf_counter() - began)
            found["bytes"].append(len(body))
            if status != 200:
                raise RuntimeError(f"/metrics answered {status}")
            sleep(SCRAPE_PAUSE_SECONDS)
    return found


def judge_scrape(found: Mapping[str, list[float]]) -> list[Row]:
    """The median scrape."""
    middle = median_interval(found["seconds"])
    size = median(found["bytes"]) / 1024
    note = f"median {middle.value * 1e3:.1f} ms, {size:.0f} KiB, {LOADING_USERS} requests in flight"
    return [SCRAPE_TIME.within(middle, "", note, {"seconds": found["seconds"]})]


@contextmanager
def _loaded(service: RunningService) -> Iterator[None]:
    """Within: LOADING_USERS requests are in flight."""
    over = Event()

    def user(number: int) -> None:
        with service.connection() as connection:
            while not over.is_set():
                connection.generate(service.modes[number % len(service.modes)])

    with ThreadPoolExecutor(LOADING_USERS) as pool:
        futures = [pool.submit(user, number) for number in range(LOADING_USERS)]
        try:
            yield
        finally:
            over.set()
        for future in futures:
            future.result()


def measure_saturation(service: RunningService, log: Log) -> dict[str, list[float]]:
    """Per round the `elapsed` seconds of a burst of requests, and the wall seconds of all of its `steps`.

    In the mode whose steps are shortest. A burst begins with an idle engine and ends with the last answer, so
    that one request's way in and out counts against the service.
    """
    found: dict[str, list[float]] = {"elapsed": [], "steps": []}
    for number in range(BURSTS_UNCOUNTED + BURSTS):
        log(f"round {number + 1} of {BURSTS_UNCOUNTED + BURSTS}")
        began = perf_counter()
        answers = _burst(service, SATURATING_USERS, REQUESTS)
        found["elapsed"].append(perf_counter() - began)
        found["steps"].append(sum(map(_walls, answers)))
    return {what: seconds[BURSTS_UNCOUNTED:] for what, seconds in found.items()}


def judge_saturation(found: Mapping[str, list[float]]) -> list[Row]:
    """The median round's share."""
    shares = [steps / elapsed for steps, elapsed in zip(found["steps"], found["elapsed"], strict=True)]
    note = f"{SATURATING_USERS * REQUESTS} requests per round, steps by the engine's own clock"
    numbers = {"elapsed_seconds": found["elapsed"], "steps_seconds": found["steps"]}
    return [THROUGHPUT.within(median_interval(shares), "", note, numbers)]


CONCURRENCY_CHECK = Check(measure_concurrency, judge_concurrency)
SCRAPE = Check(measure_scrape, judge_scrape)
SATURATION = Check(measure_saturation, judge_saturation)


# The shares that a running service answers with, beside samples taken in this process. Both run the same
# requests in turn, on the cores of the engine, which idles while this process samples. Here a minimal loop
# runs the steps, and the check tells the sampler which one runs: nothing that serving keeps of its samples
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


ServedArm = tuple[Kind, str, str]
"""Kind, mode, and `service` or `process`."""


def served_samples_check(settings: Settings) -> Check[RunningService, ServedArm, Share]:
    """The check, with steps in this process that are built of `settings`."""

    def measure(service: RunningService, log: Log) -> dict[ServedArm, list[Share]]:
        """Shares by round; of traffic only the last answer's, which rests on what all before it left.

        Raises NotMeasurableError where the service does not sample, or too few samples fall into a request.
        """
        modes = [mode for mode in SERVED_MODES if mode in service.modes]
        with service.connection() as connection:
            why = json.loads(connection.get("/v1/modes")[1])["engine"]["no_samples"]
        if why:
            raise NotMeasurableError(why)
        # Only now: the other checks over HTTP send their requests from a process without torch.
        from service.proof.requests import SampledRequests

        log("building steps in this process")
        alone = msgspec.structs.replace(settings.engine_settings(""), batch_sizes=[BUCKET])
        requests = SampledRequests(alone, service.cpus, modes)
        found: dict[ServedArm, list[Share]] = {}
        for kind in KINDS:
            arms: dict[ServedArm, Callable[[], Share]] = {}
            for mode in modes:
                arms[kind, mode, "service"] = partial(_answered, service, kind, mode)
                arms[kind, mode, "process"] = partial(_here, requests, kind, mode)
            found |= in_rounds(arms, SERVED_ROUNDS, f"served/{kind.name}/{kind.phase}", log)
        return {
            arm: shares[-1:] if (arm[0].name, arm[2]) == ("traffic", "service") else shares
            for arm, shares in found.items()
        }

    return Check(measure, judge_served, (ALIKE,))


def _answered(service: RunningService, kind: Kind, mode: str) -> Share:
    """What the last of the requests of a round answers.

    Raises NotMeasurableError where its steps are too short for samples of its own, ValueError where they are
    long enough and it has none.
    """
    from service.engine.step_shares import ENOUGH  # with torch, which only this check's process has
    from service.measure.cpu_sampler import SAMPLES_PER_SECOND

    # A connection of their own: the service closes one that idles while this process runs steps.
    with service.connection() as connection:
        until = perf_counter() + kind.seconds
        timings = connection.generate(mode, kind.new_tokens, sample=kind.sample)
        while perf_counter() < until:
            timings = connection.generate(mode, kind.new_tokens, sample=kind.sample)
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


def judge_served(found: Mapping[ServedArm, list[Share]]) -> list[Row]:
    """Per kind and mode, the difference of the shares, all rounds together."""
    rows = []
    for kind, mode in dict.fromkeys((kind, mode) for kind, mode, _ in found):
        served, own = found[kind, mode, "service"], found[kind, mode, "process"]
        (count, total), (other, others) = (_together(shares) for shares in (served, own))
        name = f": {kind.name}, {mode}, {kind.phase}, batch {BUCKET}"
        note = f"{count / total:.3f} of {total:,} samples, {other / others:.3f} of {others:,} in process"
        numbers = {"service": [one.kernel for one in served], "process": [one.kernel for one in own]}
        rows.append(ALIKE.within(difference_of_shares(count, total, other, others), name, note, numbers))
    return rows


def _together(shares: list[Share]) -> tuple[float, int]:
    return sum(share.kernel * share.samples for share in shares), sum(share.samples for share in shares)


# A/A tests: the reports' comparison finds no difference of a mode to itself, nor between equal sweeps

REPEATS = 40
NEEDED_ALIKE = 35 / 40
ITSELF_REQUESTS = 2
SHORT = 6
SWEEP_BATCHES = 2
"""Of those served, the smallest."""

SWEEP_TOKENS = 8
NEEDED_SHARE = 0.9


def measure_itself(service: RunningService, log: Log) -> dict[str, list[Comparison]]:
    """Eager compared with eager REPEATS times, the two shuffled in every round."""
    found = []
    with service.connection() as connection:

        def latency() -> float:
            answers = [connection.generate(BASELINE, SHORT) for _ in range(ITSELF_REQUESTS)]
            return float(median(timings["latency_seconds"] for timings in answers))

        for repeat in range(REPEATS):
            log(f"comparison {repeat + 1} of {REPEATS}")
            one, other = in_rounds({0: latency, 1: latency}, MINIMUM_ROUNDS, f"itself/{repeat}").values()
            found.append(compare(dict(enumerate(one)), dict(enumerate(other))))
    return {"comparisons": found}


def judge_itself(found: Mapping[str, list[Comparison]]) -> list[Row]:
    """How many of the comparisons find no difference."""
    comparisons = found["comparisons"]
    alike = sum(comparison.word == "no detectable difference" for comparison in comparisons)
    spread = max(abs(math.log(comparison.speedup.value)) for comparison in comparisons)
    needed = math.ceil(NEEDED_ALIKE * len(comparisons))
    note = f"largest ratio seen {math.exp(spread):.3f}; {MINIMUM_ROUNDS} rounds of {ITSELF_REQUESTS} requests"
    return [count_row("eager against eager: no detectable difference", alike, len(comparisons), needed, note)]


def measure_twice(service: RunningService, log: Log) -> dict[str, list[float]]:
    """The same sweep twice: per cell, the differences of its log speed-ups over eager, round by round."""
    if BASELINE not in service.modes:
        raise RuntimeError(f"every ratio is to '{BASELINE}': serve it")
    cells = ladder_cells(service.modes, service.batch_sizes[:SWEEP_BATCHES], SWEEP_TOKENS)
    plan = Plan(preset="selftest", seed=7, rounds=MINIMUM_ROUNDS, cells=tuple(cells), warmup_passes_most=3)
    first, second = (_log_latencies(service, plan, number, log) for number in (1, 2))
    baselines = {c.batch_size: c.name for c in plan.cells if c.mode == BASELINE and not c.control}
    found = {}
    for cell in plan.cells:
        baseline = baselines[cell.batch_size]
        if cell.name != baseline:
            one, other = paired(*(_speedups(sweep[baseline], sweep[cell.name]) for sweep in (first, second)))
            found[cell.name] = [b - a for a, b in zip(one, other, strict=True)]
    return found


def _speedups(baseline: dict[int, float], cell: dict[int, float]) -> dict[int, float]:
    """The logarithms, by the rounds that both have."""
    return {number: baseline[number] - cell[number] for number in baseline.keys() & cell.keys()}


def _log_latencies(service: RunningService, plan: Plan, number: int, log: Log) -> dict[str, dict[int, float]]:
    """Of the plan's sweep: the logarithm of the median latency, by cell and round."""
    log(f"sweep {number} of 2: {plan.requests} requests and warm-up")
    with TemporaryDirectory(prefix="launchbound-") as folder, Path(folder, "console.log").open("w") as output:
        result = run_sweep(service.url, plan, Path(folder), console=Console(file=output), exporter_port=0)
        if not result.run.complete:
            raise RuntimeError(f"sweep {number} stopped: {result.run.stopped_because}")
        rows = [row for row in read_rows(Path(folder)) if row.stage == "measure" and row.ok]
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        found.setdefault(row.cell, {}).setdefault(row.round, []).append(row.latency_seconds)
    return {cell: {n: math.log(median(v)) for n, v in rounds.items()} for cell, rounds in found.items()}


def judge_twice(found: Mapping[str, list[float]]) -> list[Row]:
    """How many cells' speed-ups do not differ between the sweeps."""
    means = {cell: mean_interval(values) for cell, values in found.items()}
    moved = {cell: mean for cell, mean in means.items() if not mean.low <= 0 <= mean.high}
    shown = ", ".join(f"{cell} by {math.expm1(mean.value):+.1%}" for cell, mean in moved.items())
    needed = math.ceil(NEEDED_SHARE * len(means))
    note = f"moved: {shown}" if moved else "no cell moved"
    alike = len(means) - len(moved)
    return [count_row("the same sweep twice: equal ratios to eager", alike, len(means), needed, note)]


ITSELF = Check(measure_itself, judge_itself)
TWICE = Check(measure_twice, judge_twice)
