"""Section `device`: versions, driver, clocks, attention's backend, copy bandwidth; the first rows on disk."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from service.front.machine import machine
from service.gpu_check.rows import Rows, own_rows
from service.gpu_check.sections.attention import attention_backends
from service.measure.cases import Bench
from service.protocol.messages import EngineSettings
from service.step.bandwidth import memory_bandwidth

PACKAGES = ("torch", "triton", "transformers", "safetensors", "tokenizers", "msgspec", "pytest")
BUFFER_BYTES = tuple(2**power for power in (21, 23, 25, 27, 28))
"""2 MB to 256 MB: from within the L2 cache of most GPUs to beyond that of any."""


def main(rows: Rows) -> None:
    """Write what is known in seconds; what needs no CUDA context first, lest making one fails."""
    rows.write(
        "versions",
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        cuda=torch.version.cuda,
    )
    rows.write("environment", **machine())
    properties = torch.cuda.get_device_properties(0)
    rows.write(
        "gpu",
        name=properties.name,
        capability=[properties.major, properties.minor],
        processors=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        cudnn=torch.backends.cudnn.version(),
    )
    for size in BUFFER_BYTES:
        found = memory_bandwidth(torch.device("cuda"), size)
        rows.write("bandwidth", buffer_bytes=found.buffer_bytes, bytes_per_second=found.bytes_per_second)
    cache = os.environ["LAUNCHBOUND_CACHE_FOLDER"]
    bench = Bench(
        EngineSettings(address="", device="cuda", modes=["eager"], batch_sizes=[1, 8], cache_folder=cache)
    )
    for bucket in bench.buffers:
        rows.write("attention", batch=bucket, backends=attention_backends(bench, bucket))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main(own_rows())
