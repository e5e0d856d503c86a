"""Which errors end the engine, which only their request or mode, and what they leave allocated."""

from __future__ import annotations

import weakref

import pytest
import torch

from service.step.device import free_memory, is_device_lost, is_out_of_memory, root_cause
from service.step.graphs import CaptureError


def accelerator_error(message: str, code: int | None = None) -> torch.AcceleratorError:
    error = torch.AcceleratorError(message)
    if code is not None:
        error.error_code = code
    return error


LOST = [
    accelerator_error("CUDA error: device-side assert triggered", 710),
    accelerator_error("CUDA error: an illegal memory access was encountered", 700),
    accelerator_error("an error without a code"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasLtMatmul(...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    RuntimeError("CUDA driver error: unspecified launch failure"),
    RuntimeError("index out of bounds: device-side assert triggered"),
]

OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    accelerator_error("CUDA error: out of memory", 2),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
]

USABLE = [
    accelerator_error("CUDA error: operation not permitted when stream is capturing", 900),
    accelerator_error("CUDA error: operation failed due to a previous error during capture", 901),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul(...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE"),
    RuntimeError("cuDNN error: CUDNN_STATUS_BAD_PARAM"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: out of memory"),
    ValueError("CUDA error: quoted by something else"),
    CaptureError("cannot be captured: CUDA error: operation not permitted when stream is capturing"),
]


@pytest.mark.parametrize(
    ("errors", "lost", "out_of_memory"),
    [(LOST, True, False), (OUT_OF_MEMORY, False, True), (USABLE, False, False)],
)
def test_an_error_loses_the_device_or_its_memory_or_neither_by_its_type_or_its_text(
    errors: list[Exception], lost: bool, out_of_memory: bool
) -> None:
    for error in errors:
        assert (is_device_lost(error), is_out_of_memory(error)) == (lost, out_of_memory), error


def raise_holding(kept: list[weakref.ref[torch.Tensor]]) -> None:
    held = torch.zeros(4)
    kept.append(weakref.ref(held))
    try:
        raise RuntimeError("the first")
    except RuntimeError as first:
        also_held = torch.zeros(4)
        kept.append(weakref.ref(also_held))
        raise torch.OutOfMemoryError("the second") from first


def test_tensors_of_the_frames_that_failed_are_freed_while_the_error_lives() -> None:
    kept: list[weakref.ref[torch.Tensor]] = []
    with pytest.raises(torch.OutOfMemoryError) as raised:
        raise_holding(kept)
    assert all(reference() is not None for reference in kept)
    free_memory(raised.value)
    assert len(kept) == 2
    assert all(reference() is None for reference in kept)
    assert str(root_cause(raised.value)) == "the first"
