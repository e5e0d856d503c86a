"""The native functions that really ran in steps of a mode, sampled by perf and classed as kernel or host."""

from __future__ import annotations

import os
import platform
from collections import Counter
from time import perf_counter_ns

import msgspec

from service.anatomy.progress import Report
from service.measure.cases import Bench, Case
from service.measure.native_stacks import PerfError, Sample, recording
from service.measure.symbols import Side, rule_of

ANSWER_SECONDS = 5.0
"""Within which a study of a warm step is to be answered."""

PERF_SECONDS = 2.4
"""What perf takes however few its samples: to start, to stop, to read the symbols of torch's libraries."""

SAMPLED_SECONDS = 0.4
LEAST_SECONDS = 0.1
SYMBOLS_SHOWN = 25
SYMBOL_CHARACTERS = 160


class NativeFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function of `binary`, its share of all samples, and the rule that made it kernel or host."""

    symbol: str
    binary: str
    side: Side
    rule: str
    share: float


class NativeSamples(msgspec.Struct, frozen=True, kw_only=True):
    """`symbols` are the most frequent. Without samples `reason` says why, and the rest is empty."""

    samples: int
    steps: int
    kernel_share: float | None
    symbols: list[NativeFunction]
    reason: str | None = None


def late(taken: float) -> bool:
    """Whether a study that took `taken` seconds so far would be answered late with any sampling."""
    return taken + PERF_SECONDS > ANSWER_SECONDS


def left_out() -> NativeSamples:
    """What stands in a finding that would have been late."""
    return _nothing(
        f"left out, because with it the answer would have taken more than {ANSWER_SECONDS:g} s: ask at a "
        "smaller batch size, or run `launchbound anatomy` with --set native=true"
    )


def sampling_seconds(taken: float) -> float:
    """How long to sample in a study that took `taken` seconds so far: less where that would be late."""
    return max(LEAST_SECONDS, min(SAMPLED_SECONDS, ANSWER_SECONDS - PERF_SECONDS - taken))


def note_of_cut(seconds: float) -> str | None:
    """What a finding says where sampling was cut to `seconds`; None where it was not."""
    if seconds >= SAMPLED_SECONDS:
        return None
    return (
        f"native functions were sampled for {seconds:.2f} s in place of {SAMPLED_SECONDS} s, because these "
        "steps are long: the rarer ones are missing"
    )


def sample_native(
    bench: Bench, case: Case, report: Report, seconds: float = SAMPLED_SECONDS
) -> NativeSamples:
    """Run steps under perf for `seconds`, at least one. What cannot be sampled here is said in `reason`."""
    if bench.device.type != "cpu":
        return _nothing("on CUDA kernels run on the device, where perf does not look")
    if platform.machine() != "x86_64":
        return _nothing("the classes of symbols are known for x86_64 only")
    report("sampling native functions with perf")
    # Of the parent, because this process may be pinned to the very cores that perf is to leave alone.
    elsewhere = os.sched_getaffinity(os.getppid()) - set(bench.cpus) or set(bench.cpus)
    steps = 0
    try:
        with recording(elsewhere) as seen:
            case.call()
            began = now = perf_counter_ns()
            while now - began < seconds * 1e9:
                case.call()
                steps += 1
                now = perf_counter_ns()
    except PerfError as error:
        return _nothing(str(error))
    return summary([sample for sample in seen.samples if began <= sample.instant_ns < now], steps)


def summary(samples: list[Sample], steps: int) -> NativeSamples:
    """The most frequent symbols of `samples`, with their shares."""
    if not samples:
        return _nothing("perf gave no samples of this process")
    counts = Counter((sample.symbol, os.path.basename(sample.binary), sample.side) for sample in samples)
    paths = {(sample.symbol, os.path.basename(sample.binary)): sample.binary for sample in samples}
    return NativeSamples(
        samples=len(samples),
        steps=steps,
        kernel_share=sum(sample.side == "kernel" for sample in samples) / len(samples),
        symbols=[
            NativeFunction(
                symbol=symbol[:SYMBOL_CHARACTERS],
                binary=binary,
                side=side,
                rule=rule_of(symbol, paths[symbol, binary]),
                share=count / len(samples),
            )
            for (symbol, binary, side), count in counts.most_common(SYMBOLS_SHOWN)
        ],
    )


def _nothing(reason: str) -> NativeSamples:
    return NativeSamples(samples=0, steps=0, kernel_share=None, symbols=[], reason=reason)
