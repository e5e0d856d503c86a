"""The device of an engine: choice, name, memory and who shares it, and which errors lose it."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator
from functools import cache
from typing import Any

import psutil
import torch

from service.machine import processor_name


def choose_device(requested: str) -> torch.device:
    """The device named by 'auto', 'cpu', 'cuda' or 'cuda:N'; raises ValueError where torch has none such."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if requested == "auto":
        return torch.device("cuda" if count else "cpu")
    device = torch.device(requested)
    if device.type == "cuda" and not count:
        raise ValueError(
            f"device '{requested}': torch sees no CUDA device here; use --device cpu or install a CUDA build"
        )
    if (device.index or 0) >= max(count, 1):
        seen = "1 CUDA device, cuda:0" if count == 1 else f"{count} CUDA devices, cuda:0 to cuda:{count - 1}"
        raise ValueError(f"device '{requested}': torch sees {seen}, here; choose one of these")
    return device


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def memory(device: torch.device) -> dict[str, int] | None:
    """The caching allocator's statistics, from `torch.cuda.memory_stats`; None on a CPU. Bytes by kind and
    moment (`allocated_peak`), and how often an allocation was retried (`alloc_retries`) or failed (`ooms`).
    """
    if device.type != "cuda":
        return None
    stats = torch.cuda.memory_stats(device)
    sizes = {
        f"{kind}_{moment}": stats.get(f"{kind}_bytes.all.{moment}", 0)
        for kind in ("allocated", "reserved", "active", "inactive_split")
        for moment in ("current", "peak")
    }
    return sizes | {event: stats.get(f"num_{event}", 0) for event in ("alloc_retries", "ooms")}


def sharing_note(device: torch.device, engine: int) -> str | None:
    """Which processes use `device` beside the service of the process `engine`, which uses it itself.

    None where there are none, on a CPU, and where the driver or a container does not say.
    """
    used = _memory_by_pid(device) if device.type == "cuda" else {}
    # Inside a container the driver may number processes as the host does: then `engine` is not among them.
    others = {pid: size for pid, size in used.items() if engine in used and not _is_ours(pid, engine)}
    if not others:
        return None
    listed = [
        f"pid {pid} ({'memory not known' if size is None else f'{size / 2**20:,.0f} MiB'})"
        for pid, size in sorted(others.items())
    ]
    return (
        f"other processes use this GPU: {', '.join(listed)}; what is measured here shares the device with "
        "them: end them, or choose another GPU by --device cuda:N"
    )


def _memory_by_pid(device: torch.device) -> dict[int, int | None]:
    """Bytes of `device` of each process that computes on it; empty where NVML (nvidia-ml-py) is missing."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return {}
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(_nvml_handle(nvml, device))
    except nvml.NVMLError:
        return {}
    return {process.pid: process.usedGpuMemory for process in running}


@cache
def _nvml_handle(nvml: Any, device: torch.device) -> Any:  # noqa: ANN401 - an optional package, without types
    """By its UUID: CUDA may number devices otherwise than the driver."""
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")


def _is_ours(pid: int, engine: int) -> bool:
    """Whether `pid` is the process `engine`, one that it started, or the studies' of the same front."""
    try:
        process, parent = psutil.Process(pid), psutil.Process(engine).ppid()
        studies = process.ppid() == parent and "service.anatomy.process" in process.cmdline()
        return studies or engine in {pid, *(one.pid for one in process.parents())}
    except psutil.Error:
        return False


_OUT_OF_MEMORY_CODE, _CAPTURE_CODES = 2, range(900, 909)
"""Codes of `cudaError_t` that leave the context as it was: out of memory, and those of stream capture."""

_OF_THE_DEVICE = (
    "CUDA error", "CUDA driver error", "Triton Error [CUDA]", "CUBLAS_STATUS_", "CUDNN_STATUS_",
    "cuDNN error", "device-side assert",
)  # fmt: skip
"""In what libraries raise as a plain RuntimeError where torch itself would raise AcceleratorError."""

_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "ALLOCATION_FAILED")
_REFUSED = ("_STATUS_NOT_SUPPORTED", "_STATUS_INVALID_VALUE", "_STATUS_BAD_PARAM", "_STATUS_ARCH_MISMATCH")
"""A library's refusal of a call that it never launched."""


def is_device_lost(error: BaseException) -> bool:
    """Whether `error` leaves the device's context unusable, so that only a new process can go on.

    torch raises AcceleratorError for its own calls; cuBLAS, cuDNN, Triton and AOTInductor raise a plain
    RuntimeError, recognised by its text. An error of a type of its own only quotes such a text.
    """
    if is_out_of_memory(error):
        return False
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) not in _CAPTURE_CODES
    return _is_of_a_library(error) and not any(text in str(error) for text in _REFUSED)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device had no memory left for what raised `error`: torch's allocator, CUDA or a library."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) == _OUT_OF_MEMORY_CODE
    return _is_of_a_library(error) and any(text in str(error) for text in _OUT_OF_MEMORY)


def _is_of_a_library(error: BaseException) -> bool:
    return type(error) is RuntimeError and any(text in str(error) for text in _OF_THE_DEVICE)


def free_memory(error: BaseException) -> None:
    """Drop the variables of all frames that `error` came through, then free the allocator's unused blocks."""
    for one in _chain(error):
        traceback.clear_frames(one.__traceback__)
    torch.cuda.empty_cache()


def root_cause(error: BaseException) -> BaseException:
    """The first error of the chain that led to `error`: a capture reports only that it was invalidated."""
    return list(_chain(error))[-1]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """`error`, and what it was raised from or during, the latest first, each once: a chain may be closed."""
    known: list[BaseException] = []
    while error is not None and not any(error is one for one in known):
        known.append(error)
        yield error
        error = error.__cause__ or error.__context__


def reason(error: BaseException) -> str:
    """What `error` says, by its type, in at most 2,000 characters."""
    return f"{type(error).__name__}: {error}"[:2000]
