"""Known vulnerabilities that may stay for a time, each with its reason and dates, read strictly from TOML."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path
from typing import Annotated

import msgspec

Text = Annotated[str, msgspec.Meta(min_length=1)]


class IgnoredError(Exception):
    """The file cannot be used; the text names the remedy."""


class Ignored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why the vulnerability `id` (or an alias of it) of `package` cannot matter here.

    `noted`: the day on which somebody looked; `until`: the last day on which that is believed.
    """

    id: Text
    package: Text
    reason: Text
    noted: date
    until: date


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ignored: list[Ignored] = []


def read_ignored(path: Path) -> list[Ignored]:
    """The entries of `path`. Raises IgnoredError, naming the file, for what is none."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        found = msgspec.convert(content, _Document).ignored
    except OSError as error:
        raise IgnoredError(f"cannot read {path}: {error}; name a file with --ignored") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        keys = ", ".join(Ignored.__struct_fields__)
        raise IgnoredError(f"{path}: {error}; each [[ignored]] has {keys}") from error
    if backwards := [each.id for each in found if each.until < each.noted]:
        raise IgnoredError(f"{path}: {', '.join(backwards)} ends before it was noted; mend `until`")
    return found
