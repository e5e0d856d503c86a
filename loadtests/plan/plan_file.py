"""Plan files: TOML read strictly, with errors that name file, line and remedy, and written again."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from loadtests.plan.arrivals import Arrivals
from loadtests.plan.blocks import ClosedLoop, OpenLoop, Place
from loadtests.plan.cells import PlanError, ShareOf
from loadtests.plan.document import DocumentError, PlanDocument, plan_of
from loadtests.plan.dtypes import DTYPES
from loadtests.plan.prompts import PROMPT_SETS
from loadtests.plan.slo import SloTable

_PLACE = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")
_LACKING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_STEP = re.compile(r"\.(?P<key>[\w-]+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")

Steps = tuple[str | int, ...]
"""Keys of tables and indexes of arrays, from the document's top to a value."""

_BLOCKS = ("closed_loop", "open_loop")
_TABLES: dict[str, type[msgspec.Struct]] = {
    "slo": SloTable,
    "closed_loop": ClosedLoop,
    "open_loop": OpenLoop,
}

_VALUES = {
    "prompts": PROMPT_SETS,
    "batch_sizes": (*get_args(Place), "numbers from 1 on"),
    "arrivals": get_args(Arrivals),
    "share_of": get_args(ShareOf),
    "dtypes": DTYPES,
}
"""What a key whose values are words may have."""


def read_plan_file(path: Path) -> PlanDocument:
    """The document of `path`. Raises PlanError, naming file, line and remedy, for what makes no plan."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the plan {path}: {error}; name a TOML file") from error
    try:
        document = parse_plan(text)
        plan_of(document)
    except DocumentError as error:
        raise PlanError(f"{path}, line {line_of(text, error.steps)}: {error}") from error
    except PlanError as error:
        raise PlanError(f"{path}, {error}") from error
    return document


def parse_plan(text: str) -> PlanDocument:
    """The document that `text` is. Raises PlanError with 'line N: …' and the remedy."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = found[1] if (found := re.search(r"at line (\d+)", str(error))) else str(text.count("\n") + 1)
        raise PlanError(f"line {line}: not TOML ({error}): mend the line") from error
    try:
        return msgspec.convert(content, PlanDocument)
    except msgspec.ValidationError as error:
        steps, problem = _explained(str(error))
        raise PlanError(f"line {line_of(text, steps)}: {problem}") from error


def _explained(message: str) -> tuple[Steps, str]:
    """Where a fault is, and what it is with its remedy, from msgspec's message."""
    place = _PLACE.search(message)
    what = message if place is None else message[: place.start()]
    steps = tuple(_steps(place["path"] if place else ""))
    known = [field.name for field in msgspec.structs.fields(_table(steps))]
    if unknown := _UNKNOWN.match(what):
        near = difflib.get_close_matches(unknown["name"], known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
        return (*steps, unknown["name"]), f"unknown key `{unknown['name']}`: {hint}"
    if lacking := _LACKING.match(what):
        return steps, f"`{lacking['name']}` is missing: add it"
    key = next((step for step in reversed(steps) if isinstance(step, str)), "the plan")
    remedy = f"write one of {', '.join(_VALUES[key])}" if key in _VALUES else "change the value"
    return steps, f"`{key}`: {what[:1].lower()}{what[1:]}: {remedy}"


def _table(steps: Steps) -> type[msgspec.Struct]:
    """The type of the table that `steps` lead into."""
    return _TABLES.get(str(steps[0]), PlanDocument) if steps else PlanDocument


def _steps(path: str) -> Iterator[str | int]:
    """The steps of msgspec's path, up to one that names no single place."""
    for step in _STEP.finditer(path):
        if step["any"]:
            return
        yield step["key"] if step["key"] is not None else int(step["index"])


def line_of(text: str, steps: Steps) -> int:
    """The line, from 1, on which the statement begins that defines the value at `steps`.

    Read line by line: the first beginning of the file that has the value ends with that statement.
    """
    lines = text.splitlines()
    begins = 1
    for number in range(1, len(lines) + 1):
        try:
            content = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue  # within a value of several lines
        if _has(content, steps):
            return begins
        begins = number + 1
    return max(1, len(lines))


def _has(content: Any, steps: Steps) -> bool:  # noqa: ANN401 - any TOML value
    for step in steps:
        if isinstance(step, int):
            if not isinstance(content, list) or len(content) <= step:
                return False
        elif not isinstance(content, dict) or step not in content:
            return False
        content = content[step]
    return bool(steps)


def toml_of(document: PlanDocument) -> str:
    """`document` as the text of a plan file, every key said; `parse_plan` gives the same document back."""
    content = msgspec.to_builtins(document)
    slo, blocks = content.pop("slo"), {name: content.pop(name) for name in _BLOCKS}
    text = "".join(_assignments(content))
    if slo is not None:
        text += "\n[slo]\n" + "".join(_assignments(slo))
    for name, tables in blocks.items():
        for table in tables:
            text += f"\n[[{name}]]\n" + "".join(_assignments(table))
    return text


def _assignments(table: Mapping[str, object]) -> Iterator[str]:
    for key, value in table.items():
        if value is not None:
            # TOML's basic strings, numbers and arrays of them are written as JSON's, but for one character.
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            yield f"{key} = {text}\n"
