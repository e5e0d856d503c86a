"""The device of an engine: choice, name and memory."""

from __future__ import annotations

import torch

from service.machine import processor_name


def choose_device(requested: str) -> torch.device:
    """The device named by 'auto', 'cpu' or 'cuda'; raises ValueError where torch has no such device."""
    if requested == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if requested == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device 'cuda': torch sees no CUDA device here; use --device cpu or install a CUDA build"
        )
    return torch.device(requested)


def device_name(device: torch.device) -> str:
    """The GPU's name, or the processor's."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def memory(device: torch.device) -> dict[str, int] | None:
    """The caching allocator's statistics, from `torch.cuda.memory_stats`; None on a CPU.

    Bytes by statistic and moment (`allocated_peak`), and how often an allocation was retried after cached
    blocks were freed (`alloc_retries`), or failed (`ooms`).
    """
    if device.type != "cuda":
        return None
    stats = torch.cuda.memory_stats()
    kinds = {
        "allocated": "allocated_bytes",
        "reserved": "reserved_bytes",
        "active": "active_bytes",
        "inactive_split": "inactive_split_bytes",
    }
    sizes = {
        f"{kind}_{moment}": stats.get(f"{name}.all.{moment}", 0)
        for kind, name in kinds.items()
        for moment in ("current", "peak")
    }
    return sizes | {event: stats.get(f"num_{event}", 0) for event in ("alloc_retries", "ooms")}
