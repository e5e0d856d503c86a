"""Docstrings and comments of the studies name only what exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import service.anatomy

STUDIES = Path(service.anatomy.__file__).parent
FILES = sorted(STUDIES.rglob("*.py"))
DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)[`(]")


def identifiers(file: Path) -> set[str]:
    """Names of a file: its own, those that it defines and those that it uses."""
    found = {file.stem, *file.parent.parts}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.alias)):
            found.update(node.name.split("."))
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


@cache
def known() -> set[str]:
    """The identifiers of the service's files."""
    return {name for file in STUDIES.parent.rglob("*.py") for name in identifiers(file)}


def test_there_are_dotted_names_to_check() -> None:
    assert sum(len(DOTTED.findall(file.read_text())) for file in FILES) > 10


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(STUDIES).as_posix())
def test_every_dotted_name_in_backticks_exists(file: Path) -> None:
    names = [name for name in DOTTED.findall(file.read_text()) if not name.startswith("torch.")]
    assert [name for name in names if not known().issuperset(name.split("."))] == []
