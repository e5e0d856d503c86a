"""Check of how functions are classed, by exact counts: the instructions of one decode step, by side.

Kernel *time* of eager, no_grad and inference_mode may differ although all that is booked as kernel is the
same: what the host does between two kernels takes the caches that they then miss. And dispatch *time* grows
with the batch, as kernels take the host's caches. Instructions know no caches. Where a tape's work were
classed as kernel, or kernels' as the host's, they would differ, on every machine alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch

from service.measure.rounds import Log
from service.measure.single_step import InstructionCounter, SingleStepError
from service.measure.variants import Variants
from service.proof.rows import Check, NotMeasurableError, Property, Row
from service.proof.split import PLAIN, plain_modes

LAYERS = 1
"""Of the model that is counted: an instruction takes some 15 µs, and every layer has the same ones."""

STRICT = (*PLAIN, "compiled")
"""Each has less of the host's work than the one before."""

GROWING = ("inference_mode", STRICT[-1])
"""In the second the host has the fewest instructions, so that a leak from kernels shows most; the first runs
kernels that the second fuses.
"""

KERNELS = Property("instructions in kernels", "within 2 %", most=0.02)
HOST = Property("host instructions", "ratio > 1, strictly")
GROWTH = Property(
    "host instructions as the batch grows", "≤ 5 % of what kernels have more", most=0.05, unit="share"
)


class Counted(NamedTuple):
    """Instructions of one decode step."""

    kernel: int
    host: int


Step = tuple[str, int]
"""A mode and its batch size."""


def measure_instructions(variants: Variants, log: Log) -> dict[Step, list[Counted]]:
    """One decode step per mode at the smallest batch, of the served model with one layer and few words.

    Those of GROWING at the largest batch as well, where they are served. Raises NotMeasurableError on CUDA,
    with several threads, and where the system or its tools forbid it.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA kernels are no instructions of the host")
    if torch.get_num_threads() > 1:
        raise NotMeasurableError("instructions of one thread are counted: serve with one")
    modes = plain_modes(variants) + [mode for mode in STRICT[len(PLAIN) :] if mode in variants.modes]
    try:
        counter = InstructionCounter(Path(variants.settings.cache_folder))
    except SingleStepError as error:
        raise NotMeasurableError(str(error)) from error
    bench, batches = variants.served_bench, sorted(variants.settings.batch_sizes)
    found: dict[Step, list[Counted]] = {}
    with variants.isolated():
        steps = [(mode, batches[0]) for mode in modes] + [(m, batches[-1]) for m in modes if m in GROWING]
        for mode, batch in dict.fromkeys(steps):
            log(f"{mode} at batch {batch}, instruction by instruction")
            counts = counter.count_settled(bench.shallow_case(mode, batch, "decode", LAYERS).call)
            found[mode, batch] = [Counted(counts.of("kernel"), counts.of("host"))]
    return found


def judge_instructions(found: Mapping[Step, list[Counted]]) -> list[Row]:
    """Kernels over eager's in the modes that run the same ones, the host's of neighbouring modes, and the
    host's of a mode at two batch sizes.
    """
    smallest = min(batch for _, batch in found)
    counted = {mode: counts[0] for (mode, batch), counts in found.items() if batch == smallest}
    eager = counted[PLAIN[0]]
    rows = [_kernels(mode, counted[mode], eager) for mode in counted if mode in PLAIN[1:]]
    rows += [_falls(pair, counted) for pair in pairwise(counted)]
    return rows + [
        _grows(mode, (smallest, batch), (counted[mode], counts[0]))
        for (mode, batch), counts in found.items()
        if batch != smallest
    ]


def _kernels(mode: str, counts: Counted, eager: Counted) -> Row:
    ratio = counts.kernel / eager.kernel
    note = f"{counts.kernel:,} against {eager.kernel:,}, decode, {LAYERS} layer"
    numbers = {"kernel_instructions": counts.kernel, "eager_kernel_instructions": eager.kernel}
    return KERNELS.exactly(abs(ratio - 1) <= KERNELS.most, ratio, f" of {mode} / {PLAIN[0]}", note, numbers)


def _falls(modes: tuple[str, str], counted: Mapping[str, Counted]) -> Row:
    upper, lower = (counted[mode].host for mode in modes)
    numbers = {"upper_host_instructions": upper, "lower_host_instructions": lower}
    name = f" of {modes[0]} over {modes[1]}"
    return HOST.exactly(upper > lower, upper / lower, name, f"{upper:,} and {lower:,}", numbers)


def _grows(mode: str, batches: tuple[int, int], counts: tuple[Counted, Counted]) -> Row:
    """The host does nearly the same for any batch: what it has more of may be kernels', classed as its.

    Nearly, because attention's products are a call per sequence, with what a library does before its kernel.
    """
    small, large = counts
    more = Counted(large.kernel - small.kernel, large.host - small.host)
    share = more.host / max(more.kernel, 1)
    note = f"{more.host:,} more, {large.host:,} in all, where kernels have {more.kernel:,} more"
    numbers = {
        "host_instructions": [small.host, large.host],
        "kernel_instructions": [small.kernel, large.kernel],
    }
    name = f": {mode}, batch {batches[1]} over {batches[0]}"
    return GROWTH.exactly(abs(share) <= GROWTH.most, share, name, note, numbers)


INSTRUCTIONS = Check(measure_instructions, judge_instructions, (KERNELS, HOST, GROWTH))
