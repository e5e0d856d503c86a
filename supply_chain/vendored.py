"""Files of other projects in the tree: each folder of them has a `vendored.toml` that names its packages."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

SHIPPED = ("service", "models", "loadtests", "dashboards")
"""The folders that are installed."""

NAME = "vendored.toml"

Text = Annotated[str, msgspec.Meta(min_length=1)]


class VendoredError(Exception):
    """A vendored file is not what its folder says; the text names the remedy."""


class NpmPackage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A package of npm, of which `files` (name → SHA-256 in hexadecimal digits) lie beside, unchanged.

    `license` is an SPDX identifier or expression.
    """

    name: Text
    version: Text
    license: Text
    files: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    npm: list[NpmPackage]


@dataclass(frozen=True, slots=True)
class Vendored:
    """A package, and the folder in which its files lie."""

    folder: Path
    package: NpmPackage


def vendored(root: Path) -> Iterator[Vendored]:
    """Every vendored package of the tree at `root`, in the order of the folders' names.

    Raises VendoredError where a description cannot be read, or a file is missing or another than it says.
    """
    paths = (path for top in SHIPPED for path in (root / top).rglob(NAME))
    for path in sorted(paths):
        try:
            document = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _Document)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            keys = ", ".join(NpmPackage.__struct_fields__)
            raise VendoredError(f"{path}: {error}; each [[npm]] has {keys}") from error
        for package in document.npm:
            for name, digest in package.files.items():
                _check(path.parent / name, digest)
            yield Vendored(path.parent, package)


def _check(path: Path, digest: str) -> None:
    if not path.is_file():
        raise VendoredError(f"{path} is missing: fetch it again, or take it out of {NAME}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise VendoredError(f"{path} is not the file that {NAME} names: fetch it again, or name its version")
