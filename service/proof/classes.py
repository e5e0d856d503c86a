"""Checks of the classes: injected work arrives on its side, exact instructions, code that no rule knows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from time import perf_counter, thread_time_ns
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from service.measure.cases import Bench, Case
from service.measure.cpu_sampler import CpuSampler, InstructionCounter, Place, SamplerError
from service.measure.rounds import Log, in_rounds
from service.modes import MODES
from service.proof.rows import NotMeasurableError, Property, Row, share_interval
from service.proof.split import PLAIN, ServedStep, plain_modes, sampled, sampler_of
from service.records import PHASES, SampleCounts, Side
from service.statistics.boundedness import CLASSES
from service.statistics.intervals import median_interval

# Injected work of known length, of the kinds that serving runs, arrives on its side. Both variants do all of
# it: one a short piece inside the step and the rest between two steps, the other all inside. What was added
# is what the work inside took more, by its own clock, in the sampled steps (docs/decisions/selftest.md).

ROUNDS = 12
SAMPLED_SECONDS = 0.2
"""Per round and variant. All rounds together have some 2,400 samples, by which a part is known within 4 %."""

INTO = ("eager", "compiled")
SHORT, LONG = 1, 8
"""Units of work, each some 0.3 ms: what either variant has inside."""

Work = Callable[[], object]
Function = Callable[..., Any]

ARRIVES: dict[Side, Property] = {
    side: Property(
        f"injected {side} time that arrives as {side}",
        f"its length ± {CLASSES:.0%}",
        1 - CLASSES,
        1 + CLASSES,
        "of what was added",
    )
    for side in ("kernel", "host")
}


class Kind(NamedTuple):
    """Work that a step may have in it, and the side that it belongs to."""

    name: str
    side: Side
    work: Callable[[int, Function], Work]
    """Makes so many units of it. The second argument compiles what the mode that it runs in would compile."""


def _layer_norm(rows: Tensor) -> Tensor:
    return F.layer_norm(rows, (256,))


def _elements(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(F.silu(x) * y) + torch.exp(-y) * x


def _dispatches(times: int, one: Tensor, out: Tensor) -> None:
    for _ in range(times):
        torch.add(one.view(1, 1).view(1), one, out=out)


def _loop(times: int) -> None:
    for _ in range(times):
        pass


def _allocations(times: int) -> None:
    for _ in range(times):
        torch.empty(1000)


def _product(function: Function, *shapes: tuple[int, ...]) -> Work:
    """`function` of random tensors of all `shapes` but the last, which is that of its result."""
    *inputs, out = shapes
    return partial(function, *(torch.rand(shape) for shape in inputs), out=torch.empty(out))


KINDS = (
    Kind("sgemm", "kernel", lambda n, _: _product(torch.mm, (128 * n, 256), (256, 256), (128 * n, 256))),
    Kind("gemv", "kernel", lambda n, _: _product(torch.mv, (512 * n, 1024), (1024,), (512 * n,))),
    Kind("attention", "kernel",
         lambda n, _: partial(F.scaled_dot_product_attention, *torch.rand(3, 2 * n, 4, 64, 64))),
    Kind("max pooling", "kernel", lambda n, _: partial(F.max_pool2d, torch.rand(n, 16, 56, 56), 2)),
    # One call: the more of the caches it takes, the longer would the host be with a second one.
    Kind("layer norm", "kernel", lambda n, fuse: partial(fuse(_layer_norm), torch.rand(1024 * n, 256))),
    Kind("element-wise chain", "kernel", lambda n, fuse: partial(fuse(_elements), *torch.rand(2, 32768 * n))),
    Kind("dispatcher", "host", lambda n, _: partial(_dispatches, 40 * n, torch.ones(1), torch.empty(1))),
    Kind("Python", "host", lambda n, _: partial(_loop, 10_000 * n)),
    Kind("allocator", "host", lambda n, _: partial(_allocations, 100 * n)),
)  # fmt: skip


class Injected(NamedTuple):
    """The samples of steps in a row, their mean CPU seconds, and those of the work inside."""

    counts: SampleCounts
    step_seconds: float
    inside_seconds: float

    def seconds_of(self, side: Side) -> float:
        """Of one step. A sample in code of no class is on neither side."""
        classed = self.counts.kernel + self.counts.host + self.counts.unclassified
        count: int = getattr(self.counts, side)
        return self.step_seconds * count / classed


class Slot:
    """What a step calls at its end: `work`, of which the CPU seconds of each run are kept."""

    def __init__(self) -> None:
        self.work: Work = lambda: None
        self.seconds: list[float] = []

    def __call__(self) -> None:
        began = thread_time_ns()
        self.work()
        self.seconds.append((thread_time_ns() - began) / 1e9)


Variant = tuple[str, str, str]
"""Name of a kind, mode, and `short` or `long`: which of them is inside."""


def measure_injected(bench: Bench, log: Log) -> dict[Variant, list[Injected]]:
    """Decode steps, by round, of one layer and few words: the work that is added must not be lost in them."""
    sampler = sampler_of(bench)
    found: dict[Variant, list[Injected]] = {}
    for mode in (mode for mode in INTO if mode in bench.modes):
        log(f"{mode}, building")
        slot = Slot()
        case = bench.injected_case(mode, slot)
        fuse = _compiled if MODES[mode].effect(bench.device.type).compiles else lambda function: function
        for kind in KINDS:
            short, rest, long = (kind.work(units, fuse) for units in (SHORT, LONG - SHORT, LONG))
            variants: dict[Variant, Callable[[], Injected]] = {
                (kind.name, mode, "short"): partial(step_sample, sampler, case, slot, short, rest),
                (kind.name, mode, "long"): partial(step_sample, sampler, case, slot, long, None),
            }
            log(f"{kind.name} in {mode}")
            with bench.isolated():
                found |= in_rounds(variants, ROUNDS, f"{kind.name}/{mode}", log)
    return found


def _compiled(function: Function) -> Function:
    """With a code object of its own: entries of one are searched in turn, and sizes would differ in that."""
    code = function.__code__.replace()
    own = FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
    return torch.compile(own, fullgraph=True, dynamic=False)


def step_sample(sampler: CpuSampler, case: Case, slot: Slot, inside: Work, beside: Work | None) -> Injected:
    """Of steps in a row with `inside` in each, sampled for SAMPLED_SECONDS."""
    slot.work = inside
    slot.seconds.clear()
    found = sampled(sampler, case, SAMPLED_SECONDS, beside)
    # Samples slow a step's own code more than work within the caches: shares of samples stand for shares of
    # time only within the time that both take while they are sampled.
    return Injected(found.counts, found.sampled_seconds, fmean(slot.seconds[-found.sampled :]))


def judge_injected(found: Mapping[Variant, list[Injected]]) -> Iterator[Row]:
    """Per kind and mode, how much of what was added has arrived, paired by round."""
    for kind, mode in product(KINDS, INTO):
        if (kind.name, mode, "short") not in found:
            continue
        short, long = (found[kind.name, mode, variant] for variant in ("short", "long"))
        pairs = list(zip(short, long, strict=True))
        added = [more.inside_seconds - less.inside_seconds for less, more in pairs]
        moved = [more.seconds_of(kind.side) - less.seconds_of(kind.side) for less, more in pairs]
        arrived = median_interval([share / whole for share, whole in zip(moved, added, strict=True)])
        step = fmean(one.step_seconds for one in short)
        note = f"{fmean(added) * 1e3:.2f} ms added to {step * 1e3:.2f} ms"
        yield ARRIVES[kind.side].within(arrived, f": {kind.name}, {mode}", note)


# Exact counts of the instructions of one decode step, by side. Unlike time they know no caches: where work is
# on the wrong side they differ, on every machine alike.

LAYERS = 1
"""Of the model that is counted: an instruction takes some 15 µs, and every layer has the same ones."""

STRICT = (*PLAIN, "compiled")
"""Each has less of the host's work than the one before."""

GROWING = ("inference_mode", STRICT[-1])
"""Plain kernels and fused ones: where the host has fewest instructions, a leak from kernels shows most."""

KERNELS = Property("instructions in kernels", "within 2 %", 0.98, 1.02)
HOST = Property("host instructions", "ratio > 1, strictly", least=math.nextafter(1, 2))
GROWTH = Property(
    "host instructions as the batch grows", "≤ 5 % of what kernels have more", -0.05, 0.05, "share"
)


class Counted(NamedTuple):
    kernel: int
    host: int


Step = tuple[str, int]
"""A mode and its batch size."""


def measure_instructions(bench: Bench, log: Log) -> dict[Step, list[Counted]]:
    """One decode step per mode at the smallest batch, those of GROWING at the largest as well. Raises
    NotMeasurableError on CUDA, with several threads, and where the system or its tools forbid it.
    """
    if bench.device.type != "cpu":
        raise NotMeasurableError("on CUDA kernels are no instructions of the host")
    if torch.get_num_threads() > 1:
        raise NotMeasurableError("instructions of one thread are counted: serve with one")
    modes = plain_modes(bench) + [mode for mode in STRICT[len(PLAIN) :] if mode in bench.modes]
    try:
        counter = InstructionCounter(Path(bench.settings.cache_folder))
    except SamplerError as error:
        raise NotMeasurableError(str(error)) from error
    batches = sorted(bench.settings.batch_sizes)
    found: dict[Step, list[Counted]] = {}
    with bench.isolated():
        steps = [(mode, batches[0]) for mode in modes] + [(m, batches[-1]) for m in modes if m in GROWING]
        for mode, batch in dict.fromkeys(steps):
            log(f"{mode} at batch {batch}, instruction by instruction")
            counts = counter.count_settled(bench.shallow_case(mode, batch, "decode", LAYERS).call)
            found[mode, batch] = [Counted(counts.of("kernel"), counts.of("host"))]
    return found


def judge_instructions(found: Mapping[Step, list[Counted]]) -> Iterator[Row]:
    """Kernels over eager's in the plain modes, the host's of neighbouring modes and of two batch sizes."""
    smallest = min(batch for _, batch in found)
    counted = {mode: counts[0] for (mode, batch), counts in found.items() if batch == smallest}
    for mode in (mode for mode in counted if mode in PLAIN[1:]):
        kernel, eager = (counted[one].kernel for one in (mode, PLAIN[0]))
        note = f"{kernel:,} against {eager:,}, decode, {LAYERS} layer"
        yield KERNELS.exactly(kernel / eager, f" of {mode} / {PLAIN[0]}", note)
    for pair in pairwise(counted):
        upper, lower = (counted[mode].host for mode in pair)
        name = f" of {pair[0]} over {pair[1]}"
        yield HOST.exactly(upper / lower, name, f"{upper:,} and {lower:,}")
    # The host does nearly the same for any batch: what it has more of may be kernels', classed as its.
    # Nearly: attention's products are a call per sequence, with what a library does before its kernel.
    for (mode, batch), (large,) in found.items():
        if batch == smallest:
            continue
        host, kernel = large.host - counted[mode].host, large.kernel - counted[mode].kernel
        note = f"{host:,} more, {large.host:,} in all, where kernels have {kernel:,} more"
        yield GROWTH.exactly(host / max(kernel, 1), f": {mode}, batch {batch} over {smallest}", note)


# Code that no rule knows: a sample there is on neither side. Libraries choose their code by the processor.

UNCLASSIFIED_ROUNDS = 5
UNCLASSIFIED_SECONDS = 0.25
UNKNOWN = Property("samples in code of no class", "≤ 2% of any step", most=0.02, unit="share")


def measure_unclassified(bench: Bench, log: Log) -> dict[ServedStep, list[Counter[Place]]]:
    """How many samples were where, by round, in every mode's steps, in both phases at every bucket."""
    sampler = sampler_of(bench)
    variants: dict[ServedStep, Callable[[], Counter[Place]]] = {}
    for mode in bench.modes:
        log(f"{mode}, building")
        for phase, bucket in product(PHASES, bench.settings.batch_sizes):
            case = bench.case(mode, bucket, phase)
            variants[ServedStep(mode, phase, bucket)] = partial(_places, sampler, case)
    with bench.isolated():
        return in_rounds(variants, UNCLASSIFIED_ROUNDS, "unclassified", log)


def _places(sampler: CpuSampler, case: Case) -> Counter[Place]:
    case.steady_seconds(1)
    until = perf_counter() + UNCLASSIFIED_SECONDS
    with sampler.recording() as places:
        while perf_counter() < until:
            case.call()
    return Counter(places)


def judge_unclassified(found: Mapping[ServedStep, list[Counter[Place]]]) -> Iterator[Row]:
    """Per mode, the step with the largest share."""
    for mode in dict.fromkeys(step.mode for step in found):
        steps = {step: sum(seen, Counter()) for step, seen in found.items() if step.mode == mode}
        within = {step: _but(seen, "system") for step, seen in steps.items()}
        unknown = {step: seen - _but(seen, "unclassified") for step, seen in within.items()}
        shares = {step: share_interval(unknown[step].total(), seen.total()) for step, seen in within.items()}
        step, worst = max(shares.items(), key=lambda one: one[1].high)
        where = "".join(f", {place.symbol} ({n})" for place, n in unknown[step].most_common(3))
        note = f"{step.phase}, batch {step.bucket}: {unknown[step].total()} of {worst.samples}{where}"
        yield UNKNOWN.within(worst, f": {mode}", note)


def _but(seen: Counter[Place], side: Side) -> Counter[Place]:
    return Counter({place: n for place, n in seen.items() if place.side != side})
