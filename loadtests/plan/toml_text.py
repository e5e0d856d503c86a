"""TOML read strictly into structs, with errors that name the line and the remedy."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from loadtests.plan.errors import PlanError

_PLACE = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")
_LACKING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_STEP = re.compile(r"\.(?P<key>[\w-]+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")

Steps = tuple[str | int, ...]
"""Keys of tables and indexes of arrays, from the document's top to a value."""

Document = TypeVar("Document", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Grammar(Generic[Document]):
    """What a TOML document may say: its type, the types of its tables by their dotted keys, and known words.

    `values`: of a key whose values are words, those that it may have.
    """

    kind: type[Document]
    tables: Mapping[str, type[msgspec.Struct]]
    values: Mapping[str, Sequence[str]]

    def parse(self, text: str) -> Document:
        """The document that `text` is. Raises PlanError with 'line N: …' and the remedy."""
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"at line (\d+)", str(error))
            line = found[1] if found else str(text.count("\n") + 1)
            raise PlanError(f"line {line}: not TOML ({error}): mend the line") from error
        try:
            return msgspec.convert(content, self.kind)
        except msgspec.ValidationError as error:
            steps, problem = self._explained(str(error))
            raise PlanError(f"line {line_of(text, steps)}: {problem}") from error

    def _explained(self, message: str) -> tuple[Steps, str]:
        """Where a fault is, and what it is with its remedy, from msgspec's message."""
        place = _PLACE.search(message)
        what = message if place is None else message[: place.start()]
        steps = tuple(_steps(place["path"] if place else ""))
        known = [field.name for field in msgspec.structs.fields(self._table(steps))]
        if unknown := _UNKNOWN.match(what):
            near = difflib.get_close_matches(unknown["name"], known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
            return (*steps, unknown["name"]), f"unknown key `{unknown['name']}`: {hint}"
        if lacking := _LACKING.match(what):
            return steps, f"`{lacking['name']}` is missing: add it"
        key = next((step for step in reversed(steps) if isinstance(step, str)), "the plan")
        remedy = f"write one of {', '.join(self.values[key])}" if key in self.values else "change the value"
        return steps, f"`{key}`: {what[:1].lower()}{what[1:]}: {remedy}"

    def _table(self, steps: Steps) -> type[msgspec.Struct]:
        """The type of the table that `steps` lead into: of the longest of its beginnings that is one."""
        keys = [step for step in steps if isinstance(step, str)]
        beginnings = (".".join(keys[:length]) for length in range(len(keys), 0, -1))
        return next((self.tables[name] for name in beginnings if name in self.tables), self.kind)


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
