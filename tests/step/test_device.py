"""Which device is used, by whom, and which errors end the engine; what it can do; how weights lie on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch

from models.checkpoint import Checkpoint
from models.config import Config
from models.served import layout_of
from models.transformer import Transformer
from service.records import EngineSettings
from service.statistics.intervals import Interval
from service.step import loaded_model, roofs
from service.step.buffers import allocate
from service.step.device import (
    choose_device,
    free_memory,
    is_device_lost,
    is_out_of_memory,
    root_cause,
    sharing_note,
)
from service.step.device_time import MOST_HOLD_SECONDS, SAMPLES, CudaQueue, queued_time
from service.step.graphs import CaptureError
from service.step.loaded_model import GAIN, ROWS, apply_layout, choose
from tests.support import small_models
from tests.support.fake_cuda import FakeDevice, pretend_devices


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
    monkeypatch.setattr(Checkpoint, "build", opened)
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


# What a step must move and compute, what the machine can, and the device's own time of a step


CONFIG = Config(layers=2, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, vocabulary=128, context=64)
BLOCK = 32 * (4 + 2 * 2) * 8 + 32 * 32 + 32 * 2 * 64 + 64 * 32
HEAD = 32 * 128


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_are_those_of_the_shapes(dtype: torch.dtype, size: int) -> None:
    model = Transformer(CONFIG, max_batch=2).eval().to(dtype)
    found = roofs.step_bytes(model, allocate(model, [1, 2], 16)[2])
    assert found.weights == size * (2 * BLOCK + HEAD)
    assert found.cache_per_position == size * 2 * 2 * 2 * 8
    per_block = (32 + 64) + (32 + 32) + (32 + 128) + (64 + 32)
    assert found.activations_per_row == size * (2 * per_block + 32 + 128)
    of_its_own_dtype = roofs.step_bytes(model, allocate(model, [1], 16, torch.float32)[1])
    assert of_its_own_dtype.cache_per_position == 4 * 2 * 2 * 2 * 8


def test_operations_are_two_per_weight_and_those_of_attention() -> None:
    found = roofs.step_flops(Transformer(CONFIG, max_batch=1).eval())
    assert found.per_row == 2 * (2 * BLOCK + HEAD)
    scores, mixed = 2 * 4 * 8, 2 * 4 * 8  # of 4 heads of width 8, for each of 2 layers
    assert found.per_position == 2 * (scores + mixed)


@pytest.mark.parametrize(
    ("weights", "buffer"),
    [(1, roofs.LEAST_BYTES), (3 * roofs.LEAST_BYTES, 3 * roofs.LEAST_BYTES), (2**40, roofs.MOST_BYTES)],
)
def test_the_buffer_is_as_large_as_the_weights_within_bounds(
    weights: int, buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("service.step.roofs._read", lambda size: float(sizes.append(size) or 1e9))
    found = roofs.memory_bandwidth(torch.device("cpu"), weights)
    assert (found.kind, found.buffer_bytes, sizes) == ("read", buffer, [buffer])


# The device's own time of a step by queued calls: true where the queue lay ready, else an upper bound


def measured(device: FakeDevice) -> tuple[Interval, int, bool]:
    """Seconds per call, calls in a queue, and whether the device may have waited."""
    return queued_time(cast(CudaQueue, device), device.call, device.clock)


@pytest.mark.parametrize(("issue_seconds", "launches", "ahead"), [(10e-6, 1, 16), (500e-6, 200, 4)])
def test_as_many_calls_are_queued_as_the_driver_takes_ahead_and_take_what_the_device_takes(
    issue_seconds: float, launches: int, ahead: int
) -> None:
    found = measured(FakeDevice(issue_seconds=issue_seconds, step_seconds=100e-6, launches=launches))
    seconds, queued, upper_bound = found
    assert (seconds.value, seconds.low, seconds.high) == pytest.approx((100e-6,) * 3)
    assert (queued, seconds.samples, upper_bound) == (ahead, SAMPLES, False)


def test_where_not_even_one_call_can_be_queued_ahead_the_result_is_an_upper_bound_and_says_so() -> None:
    seconds, _, upper_bound = measured(FakeDevice(issue_seconds=2 * MOST_HOLD_SECONDS, step_seconds=0.1))
    assert upper_bound
    assert seconds.value > 0.1


@pytest.mark.parametrize(("late", "exact"), [((2, 5), True), (range(6), False)])
def test_samples_in_which_the_device_caught_up_are_left_out_as_long_as_enough_remain(
    late: Sequence[int], exact: bool
) -> None:
    hiccups = frozenset(4 + 16 + 16 * number + 3 for number in late)
    seconds, _, upper_bound = measured(FakeDevice(10e-6, 100e-6, hiccups=hiccups))
    assert (seconds.samples, upper_bound) == (SAMPLES - 2 * exact, not exact)
    assert seconds.high == pytest.approx(100e-6) if exact else seconds.value > 100e-6


# The choice of a layout for linear weights: from made-up times, and where it is kept


Seconds = dict[str, dict[int, float]]


def made() -> Transformer:
    return Transformer(small_models.CONFIG, max_batch=2, seed=3).eval()


def times(transposed: tuple[float, float, float]) -> Seconds:
    """Those of `aten` are 1 s at all rows."""
    return {"aten": dict.fromkeys(ROWS, 1.0), "transposed": dict(zip(ROWS, transposed, strict=True))}


def test_the_faster_layout_over_all_rows_is_chosen_and_said_why() -> None:
    chosen = choose(times((0.5, 1.1, 1.0)))
    assert chosen.layout == "transposed"
    assert chosen.reason == "1.22× as fast as aten over rows (2.00× at 1, 0.91× at 4, 1.00× at 16)"
    assert chosen.step_seconds["transposed"][1] == 0.5


@pytest.mark.parametrize("seconds", [(0.98, 0.98, 0.98), (0.5, 2.0, 1.0), (2.0, 2.0, 2.0)])
def test_the_usual_layout_stays_where_another_gains_too_little(seconds: tuple[float, float, float]) -> None:
    chosen = choose(times(seconds))
    assert chosen.layout == "aten"
    assert chosen.reason.startswith(f"no other layout is {GAIN:g}× as fast: transposed")


@pytest.mark.parametrize(
    ("requested", "casts", "layout", "reason"),
    [("transposed", False, "transposed", "requested"), ("auto", True, "aten", "autocast casts the weights")],
)
def test_a_layout_by_name_and_that_of_autocast_are_taken_untimed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, requested: str, casts: bool, layout: str, reason: str
) -> None:
    monkeypatch.setattr(loaded_model, "step_seconds", lambda _: pytest.fail("nothing is to be timed"))
    model = made()
    chosen = apply_layout(model, requested, str(tmp_path), "key", casts)
    assert (chosen.layout, layout_of(model), chosen.step_seconds) == (layout, layout, {})
    assert reason in chosen.reason
    assert not list(tmp_path.iterdir())


def test_an_unknown_layout_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="linears 'rows': try one of auto, aten, transposed"):
        apply_layout(made(), "rows", str(tmp_path), "key")


def test_a_choice_is_timed_once_per_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    timed = []

    def time_them(model: object) -> Seconds:
        timed.append(model)
        return times((0.5, 0.5, 0.5))

    monkeypatch.setattr(loaded_model, "step_seconds", time_them)
    first, second, other = (made() for _ in range(3))
    chosen = apply_layout(first, "auto", str(tmp_path), "tiny float32")
    assert apply_layout(second, "auto", str(tmp_path), "tiny float32") == chosen
    assert timed == [first]
    apply_layout(other, "auto", str(tmp_path), "small float32")
    assert timed == [first, other]
    assert {layout_of(model) for model in (first, second, other)} == {"transposed"}
