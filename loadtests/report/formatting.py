"""Numbers as text, the same in the page, in Markdown and on the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dashboards.theme import mode_colour
from service.modes import MODES
from service.statistics.intervals import Interval

UNKNOWN = "unknown"


def significant(value: float, digits: int = 3) -> str:
    """`value` to `digits` significant digits, never with an exponent: 0.0312, 4.57, 123, 12,300."""
    if not math.isfinite(value):
        return "∞"
    if value == 0:
        return "0"
    value = float(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, or a dash."""
    return "–" if seconds is None else f"{significant(seconds * 1e3)} ms"


def microseconds(seconds: float | None) -> str:
    """Seconds as microseconds, or a dash."""
    return "–" if seconds is None else f"{significant(seconds * 1e6)} µs"


def in_seconds(seconds: float | None) -> str:
    """Seconds as seconds, or 'unknown'."""
    return UNKNOWN if seconds is None else f"{significant(seconds)} s"


def whole(count: float | None) -> str:
    """A count without decimals, or 'unknown'."""
    return UNKNOWN if count is None else f"{count:,.0f}"


def counted(typical: int, least: int, most: int) -> str:
    """A count with its interval: 709 (581–947)."""
    return f"{typical:,} ({least:,}–{most:,})"


def cores(cpus: Sequence[int] | None) -> str:
    if not cpus:
        return "any core"
    return f"core{'s' if len(cpus) != 1 else ''} {', '.join(map(str, cpus))}"


def size(count: float) -> str:
    """Bytes with a binary unit: 24.1 MiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{significant(count / scale)} {unit}"
    return f"{count:.0f} bytes"


def times(ratio: float) -> str:
    """A ratio: 2.93×."""
    return f"{significant(ratio)}×"


def span(interval: Interval, scale: float = 1.0) -> str:
    """An interval's ends: 2.81–3.05."""
    return f"{significant(interval.low * scale)}–{significant(interval.high * scale)}"


def level(confidence: float) -> str:
    """A confidence as text: 95 %, 99.7 %."""
    return f"{100 * confidence:.3g} %"


def share_span(interval: Interval | None) -> str:
    """The ends of a share's interval: '0.31–0.66'."""
    return "no interval" if interval is None else f"{interval.low:.2f}–{interval.high:.2f}"


def capital(text: str) -> str:
    """`text` as a sentence or title begins with it; the rest as it is."""
    return text[:1].upper() + text[1:]


def listed(items: list[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def colour(mode: str) -> str:
    """A mode's colour, everywhere the same."""
    return mode_colour(mode, MODES)
