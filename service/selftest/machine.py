"""Names the machine that a selftest is valid for."""

from __future__ import annotations

import torch

from service.step.device import device_name


def described(device: torch.device, precision: str) -> dict[str, str | int]:
    """Processor, device, torch, threads and precision."""
    return {
        "cpu": device_name(torch.device("cpu")),
        "device": device_name(device),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "dtype": precision,
    }
