"""Made-up samples for the checks: as an honest machine gives them, and with the errors that they are for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

from service.measure import symbols
from service.measure.cpu_sampler import SAMPLES_PER_SECOND, Place, SampledSteps
from service.proof.classes import INTO, KINDS, Counted, Injected
from service.proof.over_http import KINDS as SERVED_KINDS
from service.proof.over_http import Share
from service.proof.split import FASTER, PLAIN, RATES, ServedStep
from service.records import PHASES, SampleCounts
from service.statistics.choice import compare

MODES = ("eager", "no_grad", "inference_mode", "compiled", "reduce-overhead")
LADDER = {"eager": 1.5e-3, "no_grad": 1.2e-3, "inference_mode": 1e-3, "compiled": 0.4e-3}
"""Seconds of dispatch."""

KERNEL_SECONDS = 2e-3
JITTER = 0.004

TORCH = "/site-packages/torch/lib/libtorch_cpu.so"
LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
Code = tuple[str, str]
"""A function, and the binary that it is in."""

PYTHON: Code = ("_PyEval_EvalFrameDefault", "/usr/bin/python3.11")
DISPATCHER: Code = ("void c10::impl::OperatorEntry::reportError(c10::DispatchKey) const", TORCH)
ALLOCATOR: Code = ("_int_malloc", LIBC)
SGEMM: Code = ("mkl_blas_avx512_sgemm_kernel_nocopy_NN_b1", TORCH)
COPY: Code = ("__memmove_avx512_unaligned_erms", LIBC)
CODE: dict[str, Code] = {
    "sgemm": SGEMM,
    "gemv": ("mkl_blas_avx512_xsgemv", TORCH),
    "attention": ("at::native::(anonymous namespace)::cpu_flash_attention<float, float, 32l>", TORCH),
    "max pooling": (
        "void at::native::(anonymous namespace)::cpu_max_pool<float, false>(at::Tensor const&)",
        TORCH,
    ),
    "layer norm": ("void at::native::(anonymous namespace)::LayerNormKernelImplInternal<float>(long)", TORCH),
    "element-wise chain": ("Sleef_expf8_u10", TORCH),
    "dispatcher": DISPATCHER,
    "Python": PYTHON,
    "allocator": ALLOCATOR,
}
"""Where the samples of each kind of injected work lie."""

Found = dict[Any, list[Any]]
Change = Callable[[SampleCounts], SampleCounts]


def counted(seconds: Mapping[Code, float], per_second: float = 1e6) -> SampleCounts:
    """The samples of code that runs for so long, as the rules class it now."""
    sides: Counter[str] = Counter()
    for code, length in seconds.items():
        sides[symbols.side_of(*code)] += round(length * per_second)
    return SampleCounts(**sides)


def honest(counts: SampleCounts) -> SampleCounts:
    return counts


def more_dispatch(counts: SampleCounts) -> SampleCounts:
    """Dispatch × 1.5: samples of kernels, as far as there are any, counted as the host's."""
    host = min(counts.kernel + counts.host, round(1.5 * counts.host))
    kernel = counts.kernel + counts.host - host
    return SampleCounts(kernel=kernel, host=host, system=counts.system, unclassified=counts.unclassified)


@contextmanager
def without(name: str) -> Iterator[None]:
    """Within: the rule called `name` is missing."""
    before = symbols.RULES
    symbols.RULES = tuple(rule for rule in before if rule.name != name)
    assert len(symbols.RULES) == len(before) - 1
    symbols.side_of.cache_clear()
    try:
        yield
    finally:
        symbols.RULES = before
        symbols.side_of.cache_clear()


def missing(name: str, samples: Callable[[], Found]) -> Found:
    """`samples`, made without the rule called `name`."""
    with without(name):
        return samples()


class Failure(NamedTuple):
    """Samples with an error, and the beginnings of the names of all rows that must fail for it."""

    error: str
    found: Found
    rows: tuple[str, ...]


def rounds(value: float, seed: object = "", count: int = 24) -> list[float]:
    """`count` samples within half a percent of `value`."""
    random = Random(f"{value}/{seed}")
    return [value * (1 + random.uniform(-JITTER, JITTER)) for _ in range(count)]


def injected(change: Change = honest, code: Mapping[str, Code] = CODE) -> Found:
    """Steps of 5 ms of kernels and 0.5 ms of host, with 0.3 or 2.4 ms of work inside, where `code` says."""
    found: Found = {}
    for kind in KINDS:
        for mode in INTO:
            for arm, inside in (("short", 0.3e-3), ("long", 2.4e-3)):
                seconds: dict[Code, float] = {SGEMM: 5e-3, PYTHON: 0.5e-3}
                seconds[code[kind.name]] = seconds.get(code[kind.name], 0) + inside
                counts = change(counted(seconds))
                found[kind.name, mode, arm] = [Injected(counts, 5.5e-3 + inside, inside)] * 12
    return found


def plain(change: Change = honest, eager: float = 1.0) -> Found:
    """Kernels of 2 ms, eager's `eager` times as long, beside the dispatch of each mode."""
    found: Found = {}
    for step in [ServedStep(mode, phase, bucket) for mode in PLAIN for phase in PHASES for bucket in (1, 16)]:
        kernel = KERNEL_SECONDS * (eager if step.mode == "eager" else 1)
        host = {PYTHON: 0.5e-3, DISPATCHER: LADDER[step.mode] - 0.5e-3}
        counts = change(counted({SGEMM: kernel, **host}))
        found[step] = [SampledSteps(counts, seconds) for seconds in rounds(kernel + LADDER[step.mode], step)]
    return found


def unclassified(*others: Code) -> Found:
    """Steps of 1,000 samples, a tenth of them in the `others`."""
    seconds = {SGEMM: 500, PYTHON: 400} | dict.fromkeys(others or [DISPATCHER], 100 / max(len(others), 1))
    return {
        ServedStep(mode, phase, bucket): [
            Counter({Place(symbols.side_of(*code), *code): round(count) for code, count in seconds.items()})
        ]
        for mode in MODES
        for phase in PHASES
        for bucket in (1, 16)
    }


def instructions(eager_kernel: int = 500_000, leaked: float = 0.01, **host: int) -> Found:
    """Steps of half a million instructions in kernels, but for eager's, and the host's of each mode.

    At batch 16 kernels have a million more, a tenth of them copies; the last mode's host has `leaked` of it.
    """
    dispatch = {mode: int(seconds * 1e9) for mode, seconds in LADDER.items()} | host

    def step(kernel: int, of_host: int, copies: int = 0) -> list[Counted]:
        counts = counted({SGEMM: kernel - copies, COPY: copies, PYTHON: of_host}, 1)
        return [Counted(counts.kernel, counts.host)]

    found: Found = {
        (mode, 1): step(eager_kernel if mode == "eager" else 500_000, of_host)
        for mode, of_host in dispatch.items()
    }
    mode, of_host = next(reversed(dispatch.items()))
    return found | {(mode, 16): step(1_500_000, of_host + round(leaked * 1_000_000), 100_000)}


def cuda(ours: float = 1.0, launches: float = 1.0) -> Found:
    """Kernel seconds over the profiler's, and launches per replayed step."""
    found: Found = {("graph_launches", "reduce-overhead"): [launches] * 5}
    for mode in MODES:
        found["kernels", mode] = [ours * 1e-3, 1e-3]
    return found


def parts(engine: float = 0.6e-3, **changes: float) -> Found:
    """Requests of 4 ms, and the engine's seconds outside its steps."""
    timings = {
        "queue_seconds": 0.0, "dispatch_seconds": 2e-3, "kernel_seconds": 1e-3, "sync_wait_seconds": None,
        "other_seconds": 1e-3, "total_seconds": 4e-3, "border_seconds": 3e-4, "tokenise_seconds": 1e-4,
    } | changes  # fmt: skip
    requests: Found = {(mode, "request"): [timings] * 20 for mode in MODES}
    return requests | {(mode, "engine"): [engine] * 20 for mode in MODES}


def added(seconds: float, inline: float = 1.2e-3) -> Found:
    """A service that adds `seconds`, beside a server with the model in it that adds `inline`."""
    return {"service": rounds(seconds, "service"), "inline": rounds(inline, "inline")}


def served(kernel: float) -> Found:
    """Half of each step is kernel, and an answer says that `kernel` is."""
    found: Found = {}
    for kind in SERVED_KINDS:
        for mode in ("eager", "compiled"):
            found[kind, mode, "service"] = [Share(kernel, 3000)]
            found[kind, mode, "process"] = [Share(0.5, 3000)]
    return found


def in_turn(modes: Iterable[str], **seconds: float) -> Found:
    """Per mode, what takes so many `seconds`, by its name."""
    return {(mode, name): rounds(value, (mode, name)) for mode in modes for name, value in seconds.items()}


def background(ratio: float) -> Found:
    """Steps of 1 ms, which samples in the background make `ratio` times as long; faster ones cost as much."""
    return in_turn(("eager", "compiled"), sampled=1e-3 * (1 + FASTER * (ratio - 1)), unsampled=1e-3)


def minimal_loop(ratio: float) -> Found:
    """Requests of 30 ms in a minimal loop, `ratio` times as long in the service's code."""
    return in_turn(MODES, service=30e-3 * ratio, minimal=30e-3)


def instrumentation(full: float) -> Found:
    """Requests of 30 ms, which take so many seconds with full instrumentation."""
    return {"full": rounds(full, "full"), "off": rounds(30e-3, "off")}


def concurrency(ratio: float) -> Found:
    """Steps of 1 ms, `ratio` times as long at concurrency 8."""
    return {1: rounds(1e-3), 8: rounds(1e-3 * ratio, 8)}


def itself(ratio: float) -> Found:
    """Forty comparisons of two arms, the second of which takes `ratio` times as long."""

    def arm(seed: object, seconds: float) -> dict[int, float]:
        return dict(enumerate(rounds(seconds, seed, 8)))

    return {"comparisons": [compare(arm((n, 0), 1e-3), arm((n, 1), 1e-3 * ratio)) for n in range(40)]}


def rates(slowed: float = 0.0, change: Change = honest) -> Found:
    """Half of each step is kernel. A thousand samples a second take `slowed` of that; those of the usual rate
    alone have the error of `change`.
    """
    found: Found = {}
    for step in [ServedStep(mode, "decode", bucket) for mode in ("eager", "compiled") for bucket in (1, 16)]:
        for rate in RATES:
            kernel = 0.5 - slowed * rate / 1000
            counts = counted({SGEMM: kernel, PYTHON: 1 - kernel})
            counts = change(counts) if rate == SAMPLES_PER_SECOND else counts
            found[step, rate] = [SampledSteps(counts, 1.0, 1 + 0.2 * rate / 1000, 1)] * 24
    return found


HONEST: dict[str, Found] = {
    "injected": injected(),
    "sampling-rate": rates(0.01),
    "plain-kernels": plain(),
    "unclassified": unclassified(),
    "instructions": instructions(500_500),
    "background": background(1.002),
    "instrumentation": instrumentation(30.03e-3),
    "minimal-loop": minimal_loop(1.01),
    "cuda": cuda(),
    "parts": parts(),
    "added": added(1.0e-3),
    "concurrency": concurrency(1.0),
    "eager-eager": itself(1.0),
    "served-samples": served(0.51),
}
"""Samples by check in which every row passes."""


def kind_rows(side: str, *kinds: str) -> tuple[str, ...]:
    return tuple(f"injected {side} time that arrives as {side}: {kind}" for kind in kinds)


FAILURES: dict[str, list[Failure]] = {
    "injected": [
        Failure("dispatch × 1.5", injected(more_dispatch), kind_rows("host", "")),
        Failure("no rule for MKL", missing("matrix products", injected),
                kind_rows("kernel", "sgemm", "gemv")),
        Failure("no rule for typed loops", missing("typed loops", injected),
                kind_rows("kernel", "attention", "max pooling", "layer norm")),
        Failure("no rule for vector mathematics", missing("element functions", injected),
                kind_rows("kernel", "element-wise chain")),
        Failure("no rule for PyTorch", missing("PyTorch", injected), kind_rows("host", "dispatcher")),
        Failure("no rule for Python", missing("Python", injected), kind_rows("host", "Python")),
        Failure("no rule for the C library", missing("run-time libraries", injected),
                kind_rows("host", "allocator")),
    ],
    "sampling-rate": [
        Failure("interrupts that slow the host alone", rates(0.06), ("kernel share at 997",)),
        Failure("interrupts that slow kernels alone", rates(-0.06), ("kernel share at 997",)),
        Failure("dispatch × 1.5", rates(change=more_dispatch), ("kernel share at 997",)),
    ],
    "plain-kernels": [
        Failure("dispatch × 1.5", plain(more_dispatch), ("kernel time equal",)),
        Failure("page faults of a tape booked as kernel", plain(eager=1.2), ("kernel time equal",)),
        Failure("no rule for MKL", missing("matrix products", plain), ("kernel time equal",)),
    ],
    "unclassified": [
        Failure("no rule for PyTorch", missing("PyTorch", unclassified), ("samples in code of no class",)),
        Failure("a library that no rule knows", unclassified(("product", "/opt/lib/libnew.so")),
                ("samples in code of no class",)),
    ],
    "instructions": [
        Failure("a tape's functions classed as kernel", instructions(520_000), ("instructions in kernels",)),
        Failure("rungs that add work",
                instructions(eager=400_000, no_grad=500_000, inference_mode=500_000, compiled=700_000),
                ("host instructions of",)),
        Failure("no rule for copies", missing("copies", instructions),
                ("host instructions as the batch grows",)),
        Failure("the host's functions classed as kernel where the batch is large", instructions(leaked=-0.06),
                ("host instructions as the batch grows",)),
    ],
    "background": [
        Failure("samples that take 300 µs each", background(1.03), ("steps sampled in the background",)),
    ],
    "instrumentation": [
        Failure("bookkeeping of 1 ms in a request of 30", instrumentation(31e-3),
                ("instrumentation full / off",)),
    ],
    "minimal-loop": [
        Failure("bookkeeping of 2 ms in a request of 30", minimal_loop(32 / 30), ("the service's code",)),
    ],
    "cuda": [
        Failure("kernels missing in the trace", cuda(ours=0.9), ("kernel / profiler's own sum",)),
        Failure("graphs that are skipped", cuda(launches=90.0), ("reduce-overhead: one graph launch",)),
    ],
    "parts": [
        Failure("a part that is negative", parts(queue_seconds=-1e-3), ("no part of a request is negative",)),
        Failure("a piece that is missing", parts(border_seconds=1e-5), ("other's pieces",)),
        Failure("work that is counted twice", parts(engine=0.9e-3), ("other's pieces",)),
    ],
    "added": [
        Failure("a front that does its work twice", added(2.4e-3),
                ("the service adds", "what the service adds")),
        Failure("a slow engine behind a fast front", added(1.3e-3, inline=1.5e-3), ("the service adds",)),
        Failure("a fast machine on which the service is slow", added(0.6e-3, inline=0.4e-3),
                ("what the service adds",)),
    ],
    "concurrency": [Failure("a front on the engine's core", concurrency(1.2), ("step time, concurrency",))],
    "eager-eager": [Failure("arms that are not alike", itself(1.1), ("eager against eager",))],
    "served-samples": [
        Failure("dispatch × 1.5 in an answer", served(0.25), ("kernel share that",)),
        Failure("samples of what runs between steps", served(0.42), ("kernel share that",)),
        Failure("samples of another mode", served(0.6), ("kernel share that",)),
    ],
}  # fmt: skip
"""By check, samples with the errors that it is for."""
