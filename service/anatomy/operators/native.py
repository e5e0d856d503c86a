"""The native functions of a mode's steps, sampled and classed as kernel or host."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from time import perf_counter_ns

import msgspec

from service.anatomy.progress import Report
from service.measure.cases import Bench, Case
from service.step.native.perf_events import PerfError
from service.step.native.stacks import Sample, StackSampler
from service.measure.symbols import Side, rule_of

ANSWER_SECONDS = 5.0
"""Time limit for the study of a warm step."""

SYMBOL_SECONDS = 1.0
"""Time to read the symbols of torch's libraries, once per process."""

SAMPLED_SECONDS = 0.4
LEAST_SECONDS = 0.1
SYMBOLS_SHOWN = 25
SYMBOL_CHARACTERS = 160


class NativeFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function of `binary`, its share of all samples, and the rule that classed it as kernel or host."""

    symbol: str
    binary: str
    side: Side
    rule: str
    share: float


class NativeSamples(msgspec.Struct, frozen=True, kw_only=True):
    """`symbols` are the most frequent functions. Without samples, `reason` is set and the rest is empty."""

    samples: int
    steps: int
    kernel_share: float | None
    symbols: list[NativeFunction]
    reason: str | None = None


def late(taken: float) -> bool:
    """Whether any sampling would exceed ANSWER_SECONDS in a study that took `taken` seconds so far."""
    return taken + SYMBOL_SECONDS > ANSWER_SECONDS


def left_out() -> NativeSamples:
    """The value where sampling is left out because of the time limit."""
    return _nothing(
        f"left out, because the answer would have taken more than {ANSWER_SECONDS:g} s: use a smaller "
        "batch size, or run `launchbound anatomy` with --set native=true"
    )


def sampling_seconds(taken: float) -> float:
    """Seconds to sample in a study that took `taken` seconds so far, within ANSWER_SECONDS."""
    return max(LEAST_SECONDS, min(SAMPLED_SECONDS, ANSWER_SECONDS - SYMBOL_SECONDS - taken))


def note_of_cut(seconds: float) -> str | None:
    """The note for sampling that was cut to `seconds`; None where it was not cut."""
    if seconds >= SAMPLED_SECONDS:
        return None
    return (
        f"native functions were sampled for {seconds:.2f} s in place of {SAMPLED_SECONDS} s, because these "
        "steps are long: the rarer ones are missing"
    )


def sample_native(
    bench: Bench, case: Case, report: Report, seconds: float = SAMPLED_SECONDS
) -> NativeSamples:
    """Sample steps for `seconds`, at least one. Where that is impossible, `reason` is set."""
    if bench.device.type != "cpu":
        return _nothing("on CUDA kernels run on the device, where the host's stacks do not reach")
    report("sampling native functions")
    steps = 0
    try:
        with closing(StackSampler()) as sampler:
            case.call()
            with sampler.recording() as seen:
                began = perf_counter_ns()
                while perf_counter_ns() - began < seconds * 1e9:
                    case.call()
                    steps += 1
    except PerfError as error:
        return _nothing(str(error))
    return summary(seen.samples, steps)


def summary(samples: list[Sample], steps: int) -> NativeSamples:
    """The most frequent symbols of `samples`, with their shares."""
    if not samples:
        return _nothing("there were no samples of this process")
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
