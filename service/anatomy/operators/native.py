"""The native functions of a mode's steps, sampled and classed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from time import thread_time_ns

import msgspec

from service.anatomy.progress import Report
from service.measure.cases import Bench, Case
from service.measure.cpu_sampler import Place, SamplerError, counts_of, kernel_share
from service.measure.split import SAMPLED_SECONDS
from service.measure.symbols import rule_of
from service.protocol.splits import SampleCounts, Side
from service.step.untimed import LEAD_STEPS, LEAD_STEPS_OF_PREFILL

SYMBOLS_SHOWN = 25
SYMBOL_CHARACTERS = 160


class NativeFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function of `binary`, its share of all samples, and the rule that classed it."""

    symbol: str
    binary: str
    side: Side
    rule: str
    share: float


class NativeSamples(msgspec.Struct, frozen=True, kw_only=True):
    """`symbols` are the most frequent functions, `sides` the samples of each class.

    `kernel_share` is kernel / (kernel + host). Without samples, `reason` is set and the rest is empty.
    """

    samples: int
    steps: int
    kernel_share: float | None
    symbols: list[NativeFunction]
    sides: SampleCounts = SampleCounts()
    reason: str | None = None


def sample_native(bench: Bench, case: Case, report: Report) -> NativeSamples:
    """Sample steps for SAMPLED_SECONDS of CPU time, at least one. Without samples, `reason` is set."""
    if bench.device.type != "cpu":
        return _nothing("on CUDA kernels run on the device, where no sample of the host's thread reaches")
    report("sampling native functions")
    steps = 0
    try:
        for _ in range(LEAD_STEPS if case.phase == "decode" else LEAD_STEPS_OF_PREFILL):
            case.call()
        with bench.sampler.recording() as seen:
            began = thread_time_ns()
            while thread_time_ns() - began < SAMPLED_SECONDS * 1e9:
                case.call()
                steps += 1
    except SamplerError as error:
        return _nothing(str(error))
    return summary(seen.places, steps)


def summary(places: Sequence[Place], steps: int) -> NativeSamples:
    """The most frequent symbols of `places`, with their shares."""
    sides = counts_of(places)
    share = kernel_share(sides)
    if share is None:
        return _nothing("no sample was in a kernel or in the host's code")
    return NativeSamples(
        samples=len(places),
        steps=steps,
        kernel_share=share,
        symbols=[
            NativeFunction(
                symbol=place.symbol[:SYMBOL_CHARACTERS],
                binary=os.path.basename(place.binary),
                side=place.side,
                rule=rule_of(place.symbol, place.binary),
                share=count / len(places),
            )
            for place, count in Counter(places).most_common(SYMBOLS_SHOWN)
        ],
        sides=sides,
    )


def _nothing(reason: str) -> NativeSamples:
    return NativeSamples(samples=0, steps=0, kernel_share=None, symbols=[], reason=reason)
