"""`pynvml` on a machine with one GPU, as far as `service.nvml` asks it; a test replaces what shall differ."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace


class NVMLError(Exception):
    """What the package raises."""


class NVMLError_NotSupported(NVMLError):
    """Of what a GPU does not report."""


NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2

_millijoules = count(5_000_000, 250_000)


def nvmlInit() -> None: ...


def nvmlDeviceGetCount() -> int:
    return 1


def nvmlDeviceGetHandleByIndex(index: int) -> str:
    return f"handle {index}"


def nvmlSystemGetDriverVersion() -> str:
    return "580.159.04"


def nvmlDeviceGetName(handle: str) -> str:
    return "NVIDIA H100 80GB HBM3"


def nvmlDeviceGetUUID(handle: str) -> str:
    return f"GPU of {handle}"


def nvmlDeviceGetClockInfo(handle: str, type: int) -> int:
    return {NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 2619}[type]


def nvmlDeviceGetMaxClockInfo(handle: str, type: int) -> int:
    return nvmlDeviceGetClockInfo(handle, type)


def nvmlDeviceGetPowerManagementLimit(handle: str) -> int:
    return 700_000


def nvmlDeviceGetPersistenceMode(handle: str) -> int:
    return 1


def nvmlDeviceGetPowerUsage(handle: str) -> int:
    return 310_500


def nvmlDeviceGetTemperature(handle: str, sensor: int) -> int:
    return {NVML_TEMPERATURE_GPU: 41}[sensor]


def nvmlDeviceGetCurrentClocksEventReasons(handle: str) -> int:
    return 0x24


def nvmlDeviceGetUtilizationRates(handle: str) -> SimpleNamespace:
    return SimpleNamespace(gpu=97, memory=40)


def nvmlDeviceGetTotalEnergyConsumption(handle: str) -> int:
    return next(_millijoules)


def nvmlDeviceGetMigMode(handle: str) -> list[int]:
    return [0, 0]
