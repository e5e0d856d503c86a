"""Precisions: the dtype of weights and cache, and the one that autocast lowers the rest to."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Precision:
    """One way to compute. `cache` is also the dtype of the rotary table, so that keys come out in it."""

    name: str
    weights: torch.dtype
    cache: torch.dtype
    autocast: torch.dtype | None = None


PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision("float32", torch.float32, torch.float32),
        Precision("bfloat16", torch.bfloat16, torch.bfloat16),
        Precision("autocast-bfloat16", torch.float32, torch.bfloat16, torch.bfloat16),
    )
}


def choose_precision(requested: str | None, device: torch.device) -> Precision:
    """The precision called `requested`, else bfloat16 on CUDA and float32 on a CPU.

    Raises ValueError, which lists the valid names, for any other name.
    """
    name = requested or ("bfloat16" if device.type == "cuda" else "float32")
    if name not in PRECISIONS:
        raise ValueError(f"dtype '{name}': try one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]
