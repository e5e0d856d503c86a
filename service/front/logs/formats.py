"""The two forms of a line: text for people, and one JSON object."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from service.front.logs.event import Event, one_line

MOST_TRACEBACK_CHARACTERS = 20_000
SERVER = "server"
"""The component of uvicorn's lines."""

_encode = msgspec.json.Encoder().encode
_HEAD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (\w+) +([\w.]+) +(.*)")


class TextFormatter(logging.Formatter):
    """Local time, level, component, message; a traceback follows in lines that begin with blanks.

    Only an event may have several lines, each of which begins like any other.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line, and those of a traceback."""
        at = datetime.fromtimestamp(record.created).isoformat(" ", "milliseconds")
        head = f"{at} {record.levelname.lower():<7} {_component(record.name):<10}"
        message = record.getMessage().rstrip()
        told = message.split("\n") if isinstance(record.msg, Event) else [message]
        lines = [f"{head} {one_line(line)}" for line in told]
        if (trace := _traceback(self, record)) is not None:
            lines += [f"    {one_line(line)}" for line in trace.split("\n")]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `component`; `message`, or an event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "component": _component(record.name),
        }
        if isinstance(record.msg, Event):
            line |= {name: _clean(value) for name, value in msgspec.to_builtins(record.msg).items()}
        else:
            line["message"] = one_line(record.getMessage().rstrip(), keep="\n")
        if (trace := _traceback(self, record)) is not None:
            line["traceback"] = one_line(trace, MOST_TRACEBACK_CHARACTERS, keep="\n")
        return _encode(line).decode()


FORMATTERS = {"text": TextFormatter, "json": JsonFormatter}


class ReadLine(NamedTuple):
    """What a line of text says."""

    level: str
    component: str
    message: str


def read_text(line: str) -> ReadLine | None:
    """A line of `TextFormatter`; None for any other."""
    found = _HEAD.fullmatch(line)
    return ReadLine(*found.groups()) if found else None


def _component(name: str) -> str:
    """Of a logger: that of ours without our name, uvicorn's as the server's."""
    if name.startswith("uvicorn"):
        return SERVER
    return name.removeprefix("launchbound.") if name != "launchbound" else "service"


def _clean(value: Any) -> Any:  # noqa: ANN401 - whatever an event's fields hold
    if isinstance(value, str):
        return one_line(value, keep="\n")
    if isinstance(value, dict):
        return {name: _clean(inner) for name, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list) else value


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else None
