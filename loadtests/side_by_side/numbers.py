"""Numbers of the picture for programs."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from service.statistics.intervals import Interval


def interval(found: Interval) -> dict[str, Any]:
    """An interval for JSON, where an end that too few rounds leave open is null."""
    values: dict[str, Any] = msgspec.to_builtins(found)
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}
