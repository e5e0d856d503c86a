"""What the bench's process tells its parent."""

from __future__ import annotations

import msgspec

from service.selftest.results import CheckResult


class Said(msgspec.Struct, frozen=True, tag="said"):
    """How far a check is."""

    name: str
    text: str


class Machine(msgspec.Struct, frozen=True, tag="machine"):
    """What is measured on."""

    described: dict[str, str | int]


class CheckResults(msgspec.Struct, frozen=True, tag="rows"):
    """A check is over."""

    name: str
    rows: list[CheckResult]


class EngineRest(msgspec.Struct, frozen=True, tag="engine_rest"):
    """By mode, an engine's work for one job outside its steps, in seconds."""

    seconds: dict[str, float]


BenchEvent = Said | Machine | CheckResults | EngineRest
