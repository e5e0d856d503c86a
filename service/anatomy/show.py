"""Shows any finding in a terminal, each value in the unit that its field's name says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Column, Table
from rich.text import Text

ROWS_SHOWN = 60
"""Of a table; `--json` has all."""

LINES_SHOWN = 12
"""Of a text of several lines, and of the records in one cell."""

SHORT_TEXT = 30
"""Characters of a text that stands in a cell with others; a reason may be longer."""

READ_AS = {
    "call": "call_seconds", "device_bound_index": "kernel_share", "fraction": "share", "step": "step_seconds",
    "wall": "wall_seconds",
}  # fmt: skip
"""Names of numbers that say their unit, for those that do not."""

EMPTY: tuple[object, ...] = (None, [], {})

Record = Mapping[str, Any]
"""A struct of a finding, as JSON has it."""


def show(finding: msgspec.Struct, console: Console) -> None:
    """Print `finding`; of long parts the beginning, and how much there is."""
    record = msgspec.json.decode(msgspec.json.encode(finding))
    # A timeline's blocks are for drawings; on a CPU no step is launch-bound or kernel-bound.
    left_out = {"blocks", "bound"} if record.get("device") == "cpu" else {"blocks"}
    _show_record(_readable(record, left_out), console)


def _readable(value: Any, left_out: Set[str]) -> Any:  # noqa: ANN401 - any value of JSON
    """`value` without the fields `left_out`, its numbers by the names of READ_AS."""
    if isinstance(value, list):
        return [_readable(each, left_out) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        READ_AS.get(name, name) if isinstance(each, float) or _is_interval(each) else name: _readable(
            each, left_out
        )
        for name, each in value.items()
        if name not in left_out
    }


def _show_record(record: Record, console: Console) -> None:
    """The single values of `record`, then each part of it: a text, a record or a list of records."""
    facts = Table.grid("", Column(overflow="fold"), padding=(0, 2))
    parts = []
    for name, value in record.items():
        if _is_part(value):
            parts.append((_label(name), value))
        elif value not in EMPTY:
            facts.add_row(_label(name), Text(_text(name, value, "\n" if name == "notes" else " ")))
    console.print(facts)
    for title, part in parts:
        _show_part(title, part, console)


def _show_part(title: str, part: Any, console: Console) -> None:  # noqa: ANN401 - what _is_part is true of
    if isinstance(part, list):
        console.print(records_table(title, part))
        return
    console.print(f"[bold]{title}[/]")
    if isinstance(part, str):
        console.print(Text(_beginning(part.splitlines())), no_wrap=True, overflow="ellipsis")
    else:
        _show_record(part, console)


def _is_part(value: object) -> bool:
    """Whether `value` has its own section: a text of several lines, a record, or a list of records."""
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict)
    if isinstance(value, dict):
        return any(isinstance(each, dict | list) for each in value.values())
    return isinstance(value, str) and "\n" in value


def _is_interval(value: object) -> bool:
    return isinstance(value, dict) and "low" in value and "high" in value


def records_table(title: str, records: Sequence[Record]) -> Table:
    """A row per record, a column per field that any of them has."""
    rows = [_flat(record) for record in records[:ROWS_SHOWN]]
    made = Table(
        title=f"{title}: {len(records)}", box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0)
    )
    if len(records) > ROWS_SHOWN:
        made.caption = f"{ROWS_SHOWN} of {len(records)}; --json has all"
    columns = []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        if any(value not in EMPTY for value in values):
            numbers = all(isinstance(value, int | float | None) for value in values)
            made.add_column(
                _label(name).replace(" ", "\n"),
                justify="right" if numbers else "left",
                overflow="fold",  # in a narrow terminal a number may have two lines, but all its digits
            )
            columns.append([Text(_text(name, value)) for value in values])
    for cells in zip(*columns, strict=True):
        made.add_row(*cells)
    return made


def _flat(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict) and not _is_interval(value):
            found |= {f"{name} {inner}": each for inner, each in value.items()}
        else:
            found[name] = value
    return found


def _label(name: str) -> str:
    """Of `host_seconds` it is `host`: its values have the unit."""
    return name.removesuffix("_seconds").removesuffix("_microseconds").replace("_", " ")


def _text(name: str, value: Any, between: str = " ") -> str:  # noqa: ANN401 - any value of JSON
    """`value` in the unit that `name` says; the items of a list are parted by `between`."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(name, value)
    if isinstance(value, list):
        if value and isinstance(value[0], dict):
            return _beginning([_line(record) for record in value])
        return between.join(_size(each) if isinstance(each, list) else _text(name, each) for each in value)
    if isinstance(value, dict):
        if _is_interval(value):
            return _interval(name, value)
        unit = "bytes" if name.endswith("by_kind") else None
        return ", ".join(f"{_label(key)} {_text(unit or key, each)}" for key, each in value.items())
    return str(value).removeprefix("aten::")


def _interval(name: str, record: Record) -> str:
    """`12 µs [11, 14]`, or `12 µs` where an end is unknown."""
    central, value = next(iter(record.items()))
    scale, unit = _unit(name if central == "value" else central, value)
    ends = [_digits(record[end] * scale) for end in ("low", "high") if record[end] is not None]
    return f"{_digits(value * scale)}{unit}" + (f" [{', '.join(ends)}]" if len(ends) == 2 else "")


def _line(record: Record) -> str:
    """A record in a cell: its short values, why one is missing, and the names of the flags that are set."""
    shown = ((name, value) for name, value in record.items() if value is not False and value not in EMPTY)
    words = ((name, _label(name) if value is True else _text(name, value)) for name, value in shown)
    return " ".join(word for name, word in words if len(word) <= SHORT_TEXT or name == "why_not")


def _size(lengths: Sequence[int]) -> str:
    return "×".join(map(str, lengths)) or "scalar"


def _beginning(lines: Sequence[str]) -> str:
    further = len(lines) - LINES_SHOWN
    more = [f"… {further} more; --json has them"] if further > 0 else []
    return "\n".join([*lines[:LINES_SHOWN], *more])


def _number(name: str, value: float) -> str:
    if name.endswith("bytes"):
        return decimal(int(value))
    scale, unit = _unit(name, value)
    return f"{_digits(value * scale)}{unit}"


def _unit(name: str, value: float) -> tuple[float, str]:
    """The unit in which the field `name` is shown, and its values times what are in it."""
    if name.endswith("microseconds"):
        return 1, " µs"
    if name.endswith("seconds"):
        return (1, " s") if value >= 1 else (1e6, " µs")
    return (100, " %") if name.endswith("share") else (1, "")


def _digits(value: float) -> str:
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"
