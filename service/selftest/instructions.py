"""Check of how functions are classed, by exact counts: the instructions of one decode step, by side.

Kernel *time* of eager, no_grad and inference_mode may differ although all that is booked as kernel is the
same: what the host does between two kernels takes the caches that they then miss. Instructions know no
caches. Where a tape's work were classed as kernel, they would differ, on every machine alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch

from service.measure.rounds import Log
from service.measure.variants import Variants
from service.selftest.check import Check, NotMeasurableError
from service.selftest.floors import FALLS, STRICT
from service.selftest.plain_kernels import PLAIN
from service.selftest.results import CheckResult, exact_result
from service.step.native.single_step import InstructionCounter, SingleStepError

LAYERS = 1
"""Of the model that is counted: an instruction takes some 15 µs, and every layer has the same ones."""

KERNELS = "instructions in kernels"
HOST = "host instructions"
BOUND = "within 2 %"
APART = 0.02


class Counted(NamedTuple):
    """Instructions of one decode step at batch 1."""

    kernel: int
    host: int


def measure_instructions(variants: Variants, log: Log) -> dict[str, list[Counted]]:
    """One decode step per mode, of the served model with one layer and a small vocabulary.

    Raises NotMeasurableError on CUDA, with several threads, and where the system or its tools forbid it.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA kernels are no instructions of the host")
    if torch.get_num_threads() > 1:
        raise NotMeasurableError("instructions of one thread are counted: serve with one")
    modes = [mode for mode in STRICT if mode in variants.modes]
    if PLAIN[0] not in modes or len(modes) < 2:
        raise NotMeasurableError(f"it compares with {PLAIN[0]}, and at least two of its modes must be served")
    try:
        counter = InstructionCounter(Path(variants.settings.cache_folder))
    except SingleStepError as error:
        raise NotMeasurableError(str(error)) from error
    found: dict[str, list[Counted]] = {}
    with variants.isolated():
        for mode in modes:
            log(f"{mode}, instruction by instruction")
            counts = counter.count_settled(variants.shallow(mode, LAYERS).call)
            found[mode] = [Counted(counts.of("kernel"), counts.of("host"))]
    return found


def judge_instructions(found: Mapping[str, list[Counted]]) -> list[CheckResult]:
    """Kernels over eager's in the modes that run the same ones, and the host's of neighbouring modes."""
    counted = {mode: counts[0] for mode, counts in found.items()}
    eager = counted[PLAIN[0]]
    rows = [
        exact_result(
            f"{KERNELS} of {mode} / {PLAIN[0]}",
            BOUND,
            abs(counts.kernel / eager.kernel - 1) <= APART,
            counts.kernel / eager.kernel,
            "ratio",
            f"{counts.kernel:,} against {eager.kernel:,}, decode, batch 1, {LAYERS} layer",
            {"kernel_instructions": counts.kernel, "eager_kernel_instructions": eager.kernel},
        )
        for mode, counts in counted.items()
        if mode in PLAIN[1:]
    ]
    return rows + [
        exact_result(
            f"{HOST} of {upper} over {lower}",
            FALLS,
            counted[upper].host > counted[lower].host,
            counted[upper].host / counted[lower].host,
            "ratio",
            f"{counted[upper].host:,} and {counted[lower].host:,}",
            {"upper_host_instructions": counted[upper].host, "lower_host_instructions": counted[lower].host},
        )
        for upper, lower in pairwise(counted)
    ]


INSTRUCTIONS = Check(measure_instructions, judge_instructions, ((KERNELS, BOUND), (HOST, FALLS)))
