"""The events in which the worker process reports its checks to its parent, as JSON lines."""

from __future__ import annotations

import msgspec

from service.selftest.results import CheckResult


class CheckProgress(msgspec.Struct, frozen=True, tag="progress"):
    """How far the check `name` is."""

    name: str
    text: str


class MachineFacts(msgspec.Struct, frozen=True, tag="machine"):
    """Processor, device, torch, threads, dtype and default dtype of the worker process."""

    facts: dict[str, str | int]


class CheckFinished(msgspec.Struct, frozen=True, tag="finished"):
    """The rows of the check `name`."""

    name: str
    rows: list[CheckResult]


class EngineOverhead(msgspec.Struct, frozen=True, tag="engine_overhead"):
    """By mode, an engine's time per job outside its steps, in seconds."""

    seconds: dict[str, float]


class OverheadFailed(msgspec.Struct, frozen=True, tag="overhead_failed"):
    """The engine's time outside its steps could not be measured, and why."""

    reason: str


WorkerEvent = CheckProgress | MachineFacts | CheckFinished | EngineOverhead | OverheadFailed
