"""What NVML says of this machine's NVIDIA GPUs: `python -m service.nvml [sample]`, as JSON or as CSV lines.

A process of its own: a call into a driver that hangs ends with nothing else, and a thread would take turns
with what measures. It reads alone, and sets nothing of a GPU.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from itertools import count
from time import monotonic, sleep
from typing import Any

PROGRAM = (sys.executable, "-m", "service.nvml")
SAMPLE = "sample"
SAMPLE_SECONDS = 0.5
NUMBERS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "utilization.gpu")
"""In MHz, MHz, W, °C and percent."""

COLUMNS = ("gpu", *NUMBERS[:4], "reasons", "time", *NUMBERS[4:], "energy", "mig")
"""Of a sample: `energy` in J since the driver was loaded, `mig` 1 in MIG mode; empty: not reported."""

TIME_FORMAT = "%Y/%m/%d %H:%M:%S.%f"
"""In UTC."""

MIG_NOTE = "MIG instance: clocks, power and energy are those of the whole GPU, which others may share"


class Unavailable(Exception):
    """NVML cannot be asked here; the message says why."""


@contextmanager
def opened() -> Iterator[Any]:
    """The module `pynvml`, initialised, until this process ends. Raises Unavailable, also for what it raises
    within the block.
    """
    try:
        nvml = import_module("pynvml")
    except ModuleNotFoundError as error:
        raise Unavailable("the package nvidia-ml-py is not installed") from error
    try:
        nvml.nvmlInit()
        yield nvml
    except nvml.NVMLError as error:
        raise Unavailable(f"NVML does not answer: {error}") from error


def expected_device(requested: str) -> str:
    """'cuda' or 'cpu': what `requested` will be in an engine here, without importing torch."""
    if requested != "auto":
        return requested.partition(":")[0]
    from importlib.metadata import version  # takes a tenth of what `--help` does

    try:
        if "+cpu" in version("torch"):
            return "cpu"
        with opened() as nvml:
            handles(nvml)
    except Unavailable:
        return "cpu"
    return "cuda"


def handles(nvml: Any) -> list[Any]:  # noqa: ANN401 - the package has no types
    """One of each GPU. Raises Unavailable where there is none."""
    found = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    if not found:
        raise Unavailable("NVML sees no GPU")
    return found


def described(nvml: Any, handle: Any) -> dict[str, str]:  # noqa: ANN401
    """A GPU's name, driver, clocks and limits as text with units, without what it does not report."""
    clock, most = nvml.nvmlDeviceGetClockInfo, nvml.nvmlDeviceGetMaxClockInfo
    read: dict[str, Callable[[], str]] = {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "driver_version": nvml.nvmlSystemGetDriverVersion,
        "clocks.sm": lambda: f"{clock(handle, nvml.NVML_CLOCK_SM)} MHz",
        "clocks.max.sm": lambda: f"{most(handle, nvml.NVML_CLOCK_SM)} MHz",
        "clocks.mem": lambda: f"{clock(handle, nvml.NVML_CLOCK_MEM)} MHz",
        "power.limit": lambda: f"{nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3:.2f} W",
        "persistence_mode": lambda: "Enabled" if nvml.nvmlDeviceGetPersistenceMode(handle) else "Disabled",
        "note": lambda: MIG_NOTE if nvml.nvmlDeviceGetMigMode(handle)[0] else "",
    }
    return {name: text for name, text in _readings(nvml, read).items() if text}


def sampled(nvml: Any, handle: Any) -> dict[str, str]:  # noqa: ANN401
    """What a GPU does now, by COLUMNS; empty where it does not report that."""
    clock = nvml.nvmlDeviceGetClockInfo
    read: dict[str, Callable[[], object]] = {
        "gpu": lambda: nvml.nvmlDeviceGetUUID(handle),
        "clocks.sm": lambda: clock(handle, nvml.NVML_CLOCK_SM),
        "clocks.mem": lambda: clock(handle, nvml.NVML_CLOCK_MEM),
        "power.draw": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "temperature.gpu": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "reasons": lambda: f"{nvml.nvmlDeviceGetCurrentClocksEventReasons(handle):#x}",
        "time": lambda: datetime.now(UTC).strftime(TIME_FORMAT),
        "utilization.gpu": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "energy": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
        "mig": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
    }
    return _readings(nvml, read)


def _readings(nvml: Any, read: dict[str, Callable[[], Any]]) -> dict[str, str]:  # noqa: ANN401
    found = {}
    for name, reading in read.items():
        try:
            found[name] = str(reading())
        except nvml.NVMLError:  # not of this GPU, or not of this driver
            found[name] = ""
    return found


def sample_on(nvml: Any) -> None:  # noqa: ANN401
    """Print a line per GPU every SAMPLE_SECONDS, until this process is ended."""
    out, gpus, began = csv.DictWriter(sys.stdout, COLUMNS), handles(nvml), monotonic()
    for number in count(1):
        out.writerows(sampled(nvml, gpu) for gpu in gpus)
        sys.stdout.flush()
        sleep(max(0.0, began + number * SAMPLE_SECONDS - monotonic()))


def main(arguments: list[str]) -> None:
    """Raises SystemExit, with a sentence on the error output, where NVML cannot be asked."""
    try:
        with opened() as nvml:
            if arguments == [SAMPLE]:
                sample_on(nvml)
            print(json.dumps([described(nvml, gpu) for gpu in handles(nvml)]))
    except Unavailable as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
