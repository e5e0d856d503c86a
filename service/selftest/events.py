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


WorkerEvent = CheckProgress | MachineFacts | CheckFinished
