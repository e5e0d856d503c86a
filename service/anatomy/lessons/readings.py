"""Reads the values of each claim from the findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from service.anatomy.lessons.answer import Measured
from service.anatomy.lessons.findings import Findings, ModePoint

Reading = Callable[[Findings], Iterator[Measured]]

NEEDS_GPU = "needs a GPU: this row waits for one"


def layer(name: str) -> Reading:
    """The layer `name` of each operator in the table of layers."""

    def read(findings: Findings) -> Iterator[Measured]:
        for one in findings.layers.operations:
            found = next((row.microseconds for row in one.layers if row.name == name), None)
            if found is not None:
                yield Measured.of(one.operation, found)

    return read


def why_no_layer(name: str) -> Callable[[Findings], str]:
    """The study's own reason for a layer that cannot be isolated."""

    def reason(findings: Findings) -> str:
        rows = (row for one in findings.layers.operations for row in one.layers if row.name == name)
        found = next((row.why_not for row in rows if row.why_not), "the study has no such layer")
        return f"{found}; {NEEDS_GPU}" if findings.machine.device == "cpu" else found

    return reason


def needs_gpu(findings: Findings) -> str:
    """Why a CPU cannot show it; with a GPU, that its trace was lost."""
    if findings.machine.device == "cpu":
        return NEEDS_GPU
    return "the profiler lost it: `make gpu-check` looks into it"


def whole_call(findings: Findings) -> Iterator[Measured]:
    """One call after another of each operator, and the mean call of an eager step."""
    for one in findings.layers.operations:
        yield Measured.of(one.operation, one.whole_microseconds)
    eager = findings.steps["eager"]
    found = eager.dispatch
    if found is not None and found.low is not None and found.high is not None:
        each = 1e6 / eager.calls
        yield Measured("in a step", found.seconds * each, found.low * each, found.high * each)


def backend(findings: Findings) -> Iterator[Measured]:
    """Memory for the result, and the kernel on next to nothing."""
    for name in ("allocator", "kernel"):
        for one in layer(name)(findings):
            yield Measured(f"{one.what}'s {name}", one.value, one.low, one.high)


def eager_over_kernels(findings: Findings) -> Iterator[Measured]:
    """The step over its kernels."""
    point = _point(findings, "eager", "eager")
    if point is not None and point.kernel_seconds.value > 0:
        step, kernel = point.step, point.kernel_seconds
        high = math.inf if kernel.low <= 0 else step.high / kernel.low
        yield Measured("", step.value / kernel.value, step.low / kernel.high, high)


def gain(against: str, mode: str) -> Reading:
    """By how many percent more steps per second `mode` makes than `against`, paired by round."""

    def read(findings: Findings) -> Iterator[Measured]:
        point = _point(findings, against, mode)
        if point is not None:
            found = point.speedup
            value, low, high = ((end - 1) * 100 for end in (found.value, found.low, found.high))
            yield Measured("", value, low, high)

    return read


def gain_of_compiling(findings: Findings) -> Iterator[Measured]:
    """Against eager, and against the best mode without a compiler."""
    for against in ("eager", "inference_mode"):
        for one in gain(against, "compiled")(findings):
            yield Measured(f"against `{against}`", one.value, one.low, one.high)


def norm_by_operator(findings: Findings) -> Iterator[Measured]:
    """Counted by a dispatch mode."""
    yield Measured.counted("", findings.layer_norm.by_operator)


def norm_compiled(findings: Findings) -> Iterator[Measured]:
    """Counted by Inductor."""
    yield Measured.counted("", findings.layer_norm.compiled)


def block_by_operator(findings: Findings) -> Iterator[Measured]:
    """The whole step's, over its layers."""
    eager = findings.steps["eager"]
    yield Measured.counted("", (eager.calls - eager.views) / findings.model_layers)


def block_compiled(findings: Findings) -> Iterator[Measured]:
    """The whole step's, over its layers."""
    kernels = findings.steps["compiled"].kernels
    if kernels is not None:
        yield Measured.counted("", kernels / findings.model_layers)


def block_calls(findings: Findings) -> Iterator[Measured]:
    """The whole step's, over its layers."""
    yield Measured.counted("", findings.steps["eager"].calls / findings.model_layers)


def saved(findings: Findings) -> Iterator[Measured]:
    """What only the tape keeps alive, over the parameters."""
    for one in findings.saved:
        yield Measured.counted(f"at batch {one.batch_size}", one.saved_bytes / one.parameter_bytes)


def strided(findings: Findings) -> Iterator[Measured]:
    """One element per cache line against a row of them."""
    yield Measured.of("", findings.strides.ratio)


def overloads(findings: Findings) -> Iterator[Measured]:
    """Of ATen in the dispatcher."""
    yield Measured.counted("overloads", findings.registry.overloads)
    yield Measured.counted("operators", findings.registry.operators)


def core(findings: Findings) -> Iterator[Measured]:
    """Tagged as core."""
    yield Measured.counted("overloads", findings.registry.core_overloads)
    yield Measured.counted("operators", findings.registry.core_operators)


def launches(findings: Findings) -> Iterator[Measured]:
    """Launch calls of an eager decode step."""
    found = findings.steps["eager"].launches
    if found is not None:
        yield Measured.counted("", found)


def probe_difference(name: str) -> Reading:
    """Microseconds that the fault of probe `name` adds; the ends combine the worse ends of both sides."""

    def read(findings: Findings) -> Iterator[Measured]:
        found = findings.probes.get(name)
        if found is None:
            return
        base, fault = found.without, found.with_fault
        if base.low is None or base.high is None or fault.low is None or fault.high is None:
            return
        value = fault.median_seconds - base.median_seconds
        yield Measured("", value * 1e6, (fault.low - base.high) * 1e6, (fault.high - base.low) * 1e6)

    return read


def _point(findings: Findings, against: str, mode: str) -> ModePoint | None:
    return next((point for point in findings.speedups[against] if point.mode == mode), None)
