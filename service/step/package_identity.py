"""What a package compiled ahead of time depends on, as the name under which it is kept."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from service.step.symbolic_size import symbolic_size


def package_identity(model: nn.Module, options: dict[str, Any], arguments: tuple[Any, ...]) -> str:
    """Hex digits of all that a package depends on.

    That is torch and Python, the processor's vector instructions, the GPU where the step runs on one, the
    number of threads, autocast, the code of the model, its weights (a package may hold them, packed), the
    options, and the arguments' layout.
    """
    parts = [
        torch.__version__,
        sys.version,
        torch.backends.cpu.get_cpu_capability(),
        _gpu(arguments[0].device),
        torch.get_num_threads(),
        [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")],
        sorted(options.items()),
        _code(model),
        _weights(model),
        [
            (t.dtype, t.device.type, t.shape, t.stride(), symbolic_size(t))
            for t in [*arguments[:3], *(tensor for layer in arguments[3] for tensor in layer)]
        ],
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _gpu(device: torch.device) -> tuple[str, tuple[int, int]] | None:
    """Name and compute capability of a GPU, for which kernels are compiled and tuned; None for a CPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)


def _code(model: nn.Module) -> list[tuple[str, str]]:
    """The classes that `model` is made of, each with the digest of its source file."""
    kinds = {type(module) for module in model.modules()}
    sources = {(f"{kind.__module__}.{kind.__qualname__}", inspect.getsourcefile(kind)) for kind in kinds}
    return sorted((name, _digest([Path(file).read_bytes()])) for name, file in sources if file)


def _weights(model: nn.Module) -> str:
    """The digest of all parameters and buffers of `model`, read once."""
    if model not in _WEIGHTS:
        tensors = (*model.parameters(), *model.buffers())
        _WEIGHTS[model] = _digest(
            tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data for tensor in tensors
        )
    return _WEIGHTS[model]


_WEIGHTS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def _digest(blocks: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()
