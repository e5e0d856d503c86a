"""A family of models that differ in their widths alone, what a step of each reads, and the line over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import linear_regression

from models.config import Config
from service.measure.variants import Variants
from service.step.buffers import SHORTEST_REACH, powers

QUARTERS = (1, 2, 3, 4)


def family(config: Config) -> list[Config]:
    """The model at a quarter, half, three quarters and the whole of every width.

    Raises ValueError where a width cannot be quartered, or head widths would rule out an attention backend.
    """
    sizes = (config.width, config.hidden, config.vocabulary)
    if any(size % 4 for size in sizes) or config.head_width % 32:
        raise ValueError("the model's widths cannot be quartered")
    return [
        replace(
            config,
            width=config.width * q // 4,
            hidden=config.hidden * q // 4,
            head_width=config.head_width * q // 4,
            vocabulary=config.vocabulary * q // 4,
        )
        for q in QUARTERS
    ]


def intercept(work: Sequence[float], seconds: Sequence[float]) -> float:
    """The value at no work of the line through the points by ordinary least squares.

    Raises statistics.StatisticsError for fewer than two points or work that is the same everywhere.
    """
    return linear_regression(work, seconds).intercept


def curvature(work: Sequence[float], seconds: Sequence[float]) -> float:
    """How badly a line fits: the largest residual as a share of the largest value."""
    line = linear_regression(work, seconds)
    residuals = (y - line.slope * x - line.intercept for x, y in zip(work, seconds, strict=True))
    return max(map(abs, residuals)) / max(seconds)


def bytes_read(variants: Variants, config: Config) -> float:
    """What a decode step at batch 1 reads: all weights, and the keys and values that it attends to."""
    element = variants.precision.cache.itemsize
    attended = powers(SHORTEST_REACH, config.context)[0]
    kept = config.layers * 2 * attended * config.kv_heads * config.head_width * element
    return float(variants.weights_bytes(config) + kept)
