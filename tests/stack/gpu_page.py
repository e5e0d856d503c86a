"""A front with a fake engine on a GPU, brought to show all that a service on a GPU shows."""

from __future__ import annotations

from typing import Any

import msgspec

from service.records import DeviceTime, KernelTime, ProfilerCost
from tests.support.serving import Front

MODES = ("eager", "reduce-overhead")
DECODE: dict[str, Any] = {
    "phase": "decode", "batch": 1, "seconds": 95e-6, "low": 95e-6, "high": 95e-6, "samples": 8
}  # fmt: skip
MEASURED: dict[str, Any] = {
    "device_times": [DeviceTime(queued=16, upper_bound=False, **DECODE)],
    "kernel_times": [KernelTime(**DECODE)],
    "profiler_cost": ProfilerCost(
        ratio=1.04, low=1.02, high=1.06, rounds=8, before_seconds=60e-6, after_seconds=62.4e-6
    ),
}
"""What no fake engine measures at warm-up."""


def advance(front: Front) -> None:
    """Requests, profiled and as something else; a compilation, and an allocation that failed."""
    for mode in MODES:
        assert front.generate(mode).status_code == 200
        assert front.command("!profiled", mode=mode).status_code == 200
    front.command("!fallback graph_skipped", mode="reduce-overhead")
    front.command("!compile reduce-overhead")
    front.command("!oom")
    tell_measured(front)


def restart(front: Front) -> None:
    """The engine dies, and the next one is ready."""
    front.command("!die")
    front.await_ready()
    tell_measured(front)


def tell_measured(front: Front) -> None:
    for mode in MODES:
        front.state.metrics.mode(msgspec.structs.replace(front.state.client.modes[mode], **MEASURED))
