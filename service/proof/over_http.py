"""Checks over HTTP of a running service, which send their requests from a process without torch, except the
last, which runs steps as well. They compare it with a server that has the model in its own process, and with
an engine without a service.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.run.machine import off_cores
from loadtests.run.target import Target, Unreachable, await_modes
from service.engine.inbox import local_job
from service.frames import FrameStream, accept, listen
from service.front.launch import end, launched
from service.front.settings import Settings
from service.machine import children_on
from service.measure.rounds import Log, in_rounds
from service.parent_death import owned
from service.proof.rows import (
    NEW_TOKENS,
    PROMPT,
    UNCOUNTED,
    Check,
    NotMeasurableError,
    Property,
    Row,
    count_row,
    difference_of_shares,
)
from service.records import PHASES, EngineStatus, Outcome, Phase, ToFront
from service.statistics.choice import Comparison, compare
from service.statistics.intervals import median_interval

if TYPE_CHECKING:
    from service.proof.split import SampledRequests

Timings = dict[str, Any]

# A service

WITHOUT_PROGRESS_SECONDS = 600.0


class Connection:
    """One kept-alive connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._http = HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def generate(self, mode: str, new_tokens: int = NEW_TOKENS, sample: bool = False) -> dict[str, Any]:
        """The timings of one request, with the client's own `latency_seconds`. Raises RuntimeError."""
        answer, latency = self.answer(mode, new_tokens, sample)
        timings: dict[str, Any] = json.loads(answer)["timings"]
        return {**timings, "latency_seconds": latency}

    def answer(self, mode: str, new_tokens: int = NEW_TOKENS, sample: bool = False) -> tuple[bytes, float]:
        """The body of one answer, and the client's latency in seconds. Raises RuntimeError."""
        asked = {"prompts": [PROMPT], "max_new_tokens": new_tokens, "ignore_eos": True}
        body = json.dumps(asked | {"sample": True} if sample else asked)
        began = perf_counter()
        self._http.request("POST", f"/v1/modes/{mode}/generate", body, {"Content-Type": "application/json"})
        response = self._http.getresponse()
        text = response.read()
        latency = perf_counter() - began
        if response.status != 200:
            raise RuntimeError(f"{mode} returned {response.status}: {text[:200].decode(errors='replace')}")
        return text, latency

    def close(self) -> None:
        self._http.close()


def connected(url: str) -> closing[Connection]:
    return closing(Connection(url))


class RunningService(NamedTuple):
    """A warm service, whose last mode has the shortest steps; `folder` keeps its log, `cpus` are its engine's
    cores. `no_samples`: why its requests are not sampled; None where they are.
    """

    url: str
    settings: Settings
    cpus: list[int]
    folder: Path
    no_samples: str | None

    def connection(self) -> closing[Connection]:
        return connected(self.url)


@contextmanager
def running_service(settings: Settings, folder: Path, log: Log) -> Iterator[RunningService]:
    """Start a service with those of `settings` that the checks depend on, wait until it is warm, keep off its
    engine's cores, end it with the block. Raises TargetError where it does not become ready, and LaunchError
    where it does not start or has ended.
    """
    environment = {"LAUNCHBOUND_CACHE_FOLDER": str(settings.cache_folder), "LAUNCHBOUND_API_KEY": None}
    given = {
        "model": settings.model,
        "device": settings.device,
        "dtype": settings.dtype,
        "modes": ",".join(settings.modes),
        "batch-sizes": ",".join(map(str, settings.batch_sizes)),
    }
    flags = [f"--{name}={value}" for name, value in given.items() if value]
    with launched(flags, folder / "service.log", environment, lost=(ConnectionError, Unreachable)) as url:
        ready = await_modes(Target(url), settings.modes, log, WITHOUT_PROGRESS_SECONDS, settled=True)
        engine = ready["engine"]
        with off_cores(engine["cpus"]):
            yield RunningService(url, settings, engine["cpus"], folder, engine["no_samples"])


# An engine without a service

CONNECT_SECONDS, WARM_SECONDS, JOB_SECONDS = 60.0, 600.0, 60.0
"""Longest wait for an engine to connect, to be warm, and to do one job."""

POLL_SECONDS = 0.1

_decode = msgspec.msgpack.Decoder(ToFront).decode


def overhead_seconds(stream: FrameStream, mode: str) -> float:
    """Have the engine at the other end run one job: its time between arrival and end beside steps and
    tokenising. Raises RuntimeError where it was not done.
    """
    now_ns = perf_counter_ns()
    job = local_job("overhead", mode, [PROMPT], NEW_TOKENS, ignore_eos=True, sent_ns=now_ns)
    try:
        stream.send(msgspec.msgpack.encode(job))
        outcome = next(one for one in _messages(stream, JOB_SECONDS) if isinstance(one, Outcome))
    except (ConnectionError, EOFError) as error:
        raise RuntimeError(f"the engine ended (a job in {mode})") from error
    timings = outcome.timings
    if timings is None:
        raise RuntimeError(f"a job in {mode} did not run: {outcome.problem}")
    walls = (timings.prefill.wall_seconds or 0.0) + (timings.decode.wall_seconds or 0.0)
    return (timings.done_ns - timings.taken_ns) / 1e9 - walls - timings.tokenise_seconds


def _messages(stream: FrameStream, seconds: float) -> Iterator[ToFront]:
    """What the engine sends. Raises EOFError where it ends, RuntimeError once `seconds` are over."""
    until = monotonic() + seconds
    while monotonic() < until:
        if stream.wait(POLL_SECONDS * 1e3):
            yield from map(_decode, stream.receive())
    raise RuntimeError(f"the engine did not answer within {seconds:.0f} s")


def _accepted(listener: socket.socket) -> FrameStream:
    listener.settimeout(CONNECT_SECONDS)
    with suppress(TimeoutError):
        if stream := accept(listener):
            return stream
    raise RuntimeError(f"the engine did not connect within {CONNECT_SECONDS:.0f} s")


@contextmanager
def bare_engine(service: RunningService, log: Log) -> Iterator[FrameStream]:
    """Start an engine of the service's settings on its cores, at batch 1, fully instrumented, until the
    block ends. Its output goes to `engine.log`. Raises RuntimeError or EOFError where it is not warm in time.
    """
    settings = msgspec.structs.replace(
        service.settings.engine_settings(f"launchbound-{secrets.token_hex(16)}-selftest"),
        cpus=service.cpus,
        batch_sizes=[1],
        profile_every=0,
        instrumentation="full",
    )
    argument = msgspec.json.encode(settings).decode()
    command = owned([sys.executable, "-m", "service.engine.process", argument])
    with listen(settings.address) as listener, (service.folder / "engine.log").open("ab") as written:
        with children_on(os.sched_getaffinity(0).union(service.cpus)):
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=written, stderr=written, start_new_session=True
            )
        try:
            with closing(_accepted(listener)) as stream:
                for message in _messages(stream, WARM_SECONDS):
                    log("an engine without a service, until it is warm")
                    if isinstance(message, EngineStatus) and message.warm:
                        break
                yield stream
        finally:
            end(process)


# The parts of a request: none is negative, and `other`, which closes the sum, is that of its pieces.

PARTS_ROUNDS = 20
PARTS = ("queue_seconds", "dispatch_seconds", "kernel_seconds", "sync_wait_seconds", "other_seconds")
PIECES = ("border_seconds", "tokenise_seconds", "front_seconds")
"""Pieces of `other` that a response may contain."""

SMALLEST = Property("no part of a request is negative", "≥ 0", least=0, unit="s")
OTHER = Property("other's pieces, measured apart, / other", "within 10 %", 0.9, 1.1)


def measure_parts(service: RunningService, log: Log) -> dict[tuple[str, str], list[Any]]:
    """By mode, timings of requests (`request`) and seconds of an engine outside its steps (`engine`): intake,
    buffers, layout, text, book-keeping. In turn, because a minute later the machine may differ.
    """
    variants: dict[tuple[str, str], Callable[[], Any]] = {}
    with bare_engine(service, log) as engine, service.connection() as connection:
        for mode in service.settings.modes:
            variants[mode, "request"] = partial(connection.generate, mode)
            variants[mode, "engine"] = partial(overhead_seconds, engine, mode)
        in_rounds(variants, UNCOUNTED, "parts uncounted", log)
        return in_rounds(variants, PARTS_ROUNDS, "parts", log)


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


# What the service adds to the model call of a request: in seconds, and beside a server with the model in it

ADDED_ROUNDS = 40
ADDED_REQUESTS = 5
ADDED_MODE = "inference_mode"
INLINE_SERVER = "service.proof.inline_server"
"""By name: it imports torch."""

ADDS = Property("the service adds to a model call, concurrency 1", "median ≤ 1.2 ms", most=1.2e-3, unit="s")
ADDS_RATIO = Property("what the service adds / what FastAPI adds in the model's process", "≤ 1", most=1.0)


def measure_added(service: RunningService, log: Log) -> dict[str, list[float]]:
    """Per round: seconds that the `service` adds to its model calls, and that an `inline` server adds to the
    same ones. That runs on the engine's cores.
    """
    modes = service.settings.modes
    mode = ADDED_MODE if ADDED_MODE in modes else modes[-1]
    settings = msgspec.structs.replace(service.settings.engine_settings(""), modes=[mode], cpus=service.cpus)
    with ExitStack() as stack:
        with children_on(service.cpus):
            argument, log_file = msgspec.json.encode(settings).decode(), service.folder / "inline.log"
            url = stack.enter_context(launched([argument], log_file, module=[INLINE_SERVER]))
        served, inline = stack.enter_context(service.connection()), stack.enter_context(connected(url))
        pair = {"pair": partial(_added_seconds, served, inline, mode)}
        in_rounds(pair, UNCOUNTED, "added uncounted", log)
        pairs = in_rounds(pair, ADDED_ROUNDS, "added", log)["pair"]
    return {"service": [added for added, _ in pairs], "inline": [added for _, added in pairs]}


def _added_seconds(served: Connection, inline: Connection, mode: str) -> tuple[float, ...]:
    """Of some requests to each the median latency less the wall time of all steps. They take turns request by
    request, so that both find the caches as the other's model call leaves them.
    """
    turns = [[connection.generate(mode) for connection in (served, inline)] for _ in range(ADDED_REQUESTS)]
    return tuple(
        median(
            timings["latency_seconds"] - sum(timings[phase]["wall_seconds"] for phase in PHASES)
            for timings in requests
        )
        for requests in zip(*turns, strict=True)
    )


def judge_added(found: Mapping[str, list[float]]) -> list[Row]:
    service, inline = found["service"], found["inline"]
    beside = f"FastAPI with the model in its own process adds {median(inline) * 1e3:.2f} ms"
    note = f"{median(service) * 1e3:.2f} ms, the client on the front's cores"
    return [ADDS.within(median_interval(service), "", note), ADDS_RATIO.ratio(service, inline, note=beside)]


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


# The shares that a running service answers with, beside samples of the same requests in this process, in turn
# on the engine's cores. Here a minimal loop runs the steps, and the check labels the sampler itself: nothing
# that serving keeps of its samples is in it.

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
    which rests on what all before it left. Raises NotMeasurableError where there are too few samples.
    """
    modes = [mode for mode in SERVED_MODES if mode in service.settings.modes]
    if service.no_samples:
        raise NotMeasurableError(service.no_samples)
    # Only now: the other checks over HTTP send their requests from a process without torch.
    from service.proof.split import SampledRequests

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
            why = f"{mode} answers the traffic's split with some {expected:.0f} samples of its own"
            raise ValueError(why)
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
