"""Reading as many elements in a row as one per cache line."""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns

import msgspec
import torch
from torch import Tensor

from service.anatomy.progress import Report
from service.measure.cases import Bench
from service.measure.rounds import in_rounds, paired_median_ratio
from service.statistics.intervals import Interval

ELEMENTS = 1 << 20
STRIDE = 16
"""Elements of float32 from one to the next: 64 bytes, a cache line of current processors."""


class StridedRead(msgspec.Struct, frozen=True, kw_only=True):
    """`ratio`: summing `elements` float32 that are `stride_bytes` apart, over summing as many in a row."""

    elements: int
    stride_bytes: int
    ratio: Interval


def time_strides(bench: Bench, rounds: int, report: Report) -> StridedRead:
    """Sum both in interleaved rounds."""
    apart = torch.ones(ELEMENTS, STRIDE, device=bench.device)[:, 0]
    sides = {"apart": apart, "in a row": apart.contiguous()}
    arms = {name: partial(_seconds, bench, values) for name, values in sides.items()}
    seconds = in_rounds(arms, rounds, "strides", report)
    ratio = paired_median_ratio(seconds["apart"], seconds["in a row"])
    return StridedRead(elements=ELEMENTS, stride_bytes=apart.stride(0) * apart.element_size(), ratio=ratio)


def _seconds(bench: Bench, values: Tensor) -> float:
    """One sum after an untimed one."""
    values.sum()
    bench.synchronise()
    began = perf_counter_ns()
    values.sum()
    bench.synchronise()
    return (perf_counter_ns() - began) / 1e9
