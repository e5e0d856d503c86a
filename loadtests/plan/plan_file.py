"""Plan files: TOML read strictly, with errors that name file, line and remedy, and written again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import msgspec

from loadtests.plan.arrivals import Arrivals
from loadtests.plan.blocks import ClosedLoop, OpenLoop, Place
from loadtests.plan.cells import PlanError
from loadtests.plan.document import DocumentError, PlanDocument, plan_of
from loadtests.plan.dtypes import DTYPES
from loadtests.plan.prompts import PROMPT_SETS
from loadtests.plan.slo import SloTable
from loadtests.plan.toml_text import Grammar
from loadtests.plan.toml_text import line_of as line_of

_BLOCKS = ("closed_loop", "open_loop")

PLAN = Grammar(
    PlanDocument,
    tables={"slo": SloTable, "closed_loop": ClosedLoop, "open_loop": OpenLoop},
    values={
        "prompts": PROMPT_SETS,
        "batch_sizes": (*get_args(Place), "numbers from 1 on"),
        "arrivals": get_args(Arrivals),
        "dtypes": DTYPES,
    },
)
"""What a plan file may say."""


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
    return PLAN.parse(text)


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
