"""Which device is used, and by whom; which errors end the engine, and which only their request or mode."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from service.records import EngineSettings
from service.step import loaded_model
from service.step.device import (
    choose_device,
    free_memory,
    is_device_lost,
    is_out_of_memory,
    root_cause,
    sharing_note,
)
from service.step.graphs import CaptureError
from tests.support.fake_cuda import pretend_devices


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


def test_a_chain_of_errors_that_closes_on_itself_has_an_end() -> None:
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__context__, second.__context__ = second, first
    assert root_cause(first) is second


@pytest.mark.parametrize(
    ("count", "devices"),
    [
        (0, {"auto": "cpu", "cpu": "cpu"}),
        (1, {"auto": "cuda", "cpu": "cpu", "cuda": "cuda", "cuda:0": "cuda:0"}),
        (12, {"auto": "cuda", "cuda": "cuda", "cuda:1": "cuda:1", "cuda:11": "cuda:11"}),
    ],
)
def test_a_device_is_chosen_by_its_name_and_number(
    monkeypatch: pytest.MonkeyPatch, count: int, devices: dict[str, str]
) -> None:
    pretend_devices(monkeypatch, count)
    assert {name: str(choose_device(name)) for name in devices} == devices


@pytest.mark.parametrize(
    ("count", "requested", "remedy"),
    [
        (0, "cuda", "device 'cuda': torch sees no CUDA device here; use --device cpu"),
        (0, "cuda:1", "device 'cuda:1': torch sees no CUDA device here; use --device cpu"),
        (1, "cuda:1", "device 'cuda:1': torch sees 1 CUDA device, cuda:0, here"),
        (
            4,
            "cuda:4",
            "device 'cuda:4': torch sees 4 CUDA devices, cuda:0 to cuda:3, here; choose one of these",
        ),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, count: int, requested: str, remedy: str
) -> None:
    pretend_devices(monkeypatch, count)
    with pytest.raises(ValueError, match=remedy):
        choose_device(requested)


@pytest.mark.parametrize(("requested", "current"), [("cuda:1", ["cuda:1"]), ("cuda", []), ("cpu", [])])
def test_a_gpu_with_a_number_is_the_current_one_before_the_model_is_opened(
    monkeypatch: pytest.MonkeyPatch, requested: str, current: list[str]
) -> None:
    class Opened(Exception):
        pass

    def opened(_: object, __: object, device: torch.device, *___: object) -> None:
        assert str(device) == requested
        raise Opened

    made: list[str] = []
    threads = torch.get_num_threads()
    pretend_devices(monkeypatch, 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: made.append(str(device)))
    monkeypatch.setattr(loaded_model, "open_model", opened)
    settings = EngineSettings(
        address="", device=requested, modes=[], batch_sizes=[1], cache_folder="", threads=threads
    )
    with pytest.raises(Opened):
        loaded_model.load_model(settings)
    assert made == current


Users = dict[int, int | None]
Driver = Callable[[Users | Exception], None]


class NVMLError(Exception):
    pass


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Have NVML say who uses the GPU of torch, as the driver's number 3."""

    def by_uuid(uuid: str) -> int:
        assert uuid == "GPU-0a-1b"
        return 3

    def says(users: Users | Exception) -> None:
        def running(number: int) -> list[Any]:
            assert number == 3
            if isinstance(users, Exception):
                raise users
            return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in users.items()]

        nvml: Any = ModuleType("pynvml")
        nvml.NVMLError, nvml.nvmlInit = NVMLError, lambda: None
        nvml.nvmlDeviceGetHandleByUUID, nvml.nvmlDeviceGetComputeRunningProcesses = by_uuid, running
        monkeypatch.setitem(sys.modules, "pynvml", nvml)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="0a-1b"))
    return says


@pytest.fixture
def service() -> Iterator[list[int]]:
    """The pids of an engine, of a process that it has started, and of the studies of the same front."""
    engine = ["sh", "-c", "sleep 60 & echo $!; wait"]
    studies = [sys.executable, "-c", "input()", "service.anatomy.process"]
    with (
        subprocess.Popen(engine, stdout=subprocess.PIPE, start_new_session=True) as first,
        subprocess.Popen(studies, stdin=subprocess.PIPE) as second,
    ):
        assert first.stdout is not None
        yield [first.pid, int(first.stdout.readline()), second.pid]
        os.killpg(first.pid, signal.SIGKILL)
        second.kill()


GPU = torch.device("cuda")
ME = os.getpid()


def test_other_processes_on_the_gpu_are_named_with_their_memory_and_the_services_own_are_not(
    driver: Driver, service: list[int]
) -> None:
    engine, *_ = service
    driver(dict.fromkeys(service, 2**30))
    assert sharing_note(GPU, engine) is None
    ended = 2**30
    driver(dict.fromkeys(service, 2**30) | {ended: None, ME: 5000 * 2**20})
    assert sharing_note(GPU, engine) == (
        f"other processes use this GPU: pid {ME} (5,000 MiB), pid {ended} (memory not known); what is "
        "measured here shares the device with them: end them, or choose another GPU by --device cuda:N"
    )


@pytest.mark.parametrize("users", [{}, {17: 2**30}, NVMLError("Driver Not Loaded")], ids=str)
def test_where_the_driver_does_not_list_the_engine_itself_nothing_is_said(
    driver: Driver, users: Users | Exception
) -> None:
    """As in a container, where it numbers processes as the host does, or lists none."""
    driver(users)
    assert sharing_note(GPU, ME) is None
    driver({ME: 2**30, 17: 2**30})
    assert sharing_note(GPU, ME) is not None
    assert sharing_note(torch.device("cpu"), ME) is None


def test_without_the_package_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert sharing_note(GPU, ME) is None
