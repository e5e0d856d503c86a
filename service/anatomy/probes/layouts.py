"""Probe of memory layouts: a convolution whose input is channels-first and whose weight is channels-last."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from service.anatomy.probes.blame import line_of, records
from service.anatomy.probes.comparison import Counter, FaultComparison, TimedStep, ratio_of
from service.anatomy.probes.memory import copies
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.progress import Report

CHANNELS = 64
SIDE = 32


def channels_last(probed: ProbedModel, report: Report) -> FaultComparison:
    """A 3 × 3 convolution with a channels-last weight, on an input in the same layout and in the other."""
    images, weight = _operands(probed)
    last_images, last_weight = (tensor.to(memory_format=torch.channels_last) for tensor in (images, weight))
    without = _convolving(last_images, last_weight)
    with_fault = _convolving(images, last_weight)
    report("timing the layouts")
    first = ratio_of(TimedStep(_convolving(images, weight)), TimedStep(without), probed.bench.synchronise)
    before, _ = copies(probed, without)
    after, copied_bytes = copies(probed, with_fault)
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        subject=f"one 3 × 3 convolution, {CHANNELS} channels to {CHANNELS}, over {tuple(images.shape)}",
        counter=Counter(name="layout_copies_per_call", before=before, after=after),
        blame=line_of("aten::convolution", records(probed, with_fault)),
        notes=[
            f"With the fault {copied_bytes:,} bytes are copied in each call, to the weight's layout.",
            f"With both channels-first, torch's default, the call takes {first.value:.2f} times as long "
            f"[{first.low:.2f} to {first.high:.2f}] as with both channels-last. What the kernel's library "
            "reorders for itself is in these times and in no counter.",
        ],
    )


def _operands(probed: ProbedModel) -> tuple[Tensor, Tensor]:
    """Images [bucket, channels, side, side] and a weight [channels, channels, 3, 3], channels-first."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        made = torch.randn(shape, generator=generator)
        return made.to(probed.bench.device, probed.bench.precision.weights)

    return normal(probed.buffers.bucket, CHANNELS, SIDE, SIDE), normal(CHANNELS, CHANNELS, 3, 3)


def _convolving(images: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    inference = torch.inference_mode()

    def convolve() -> Tensor:
        with inference:
            return functional.conv2d(images, weight, padding=1)

    return convolve
