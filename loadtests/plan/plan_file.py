"""Plan files: TOML read strictly, with errors that name file, line and remedy; the plan that one makes."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from loadtests.plan.cells import (
    BASELINE,
    Arrivals,
    Cell,
    Plan,
    PlanError,
    Slo,
    SloTable,
    ladder_cells,
)
from loadtests.plan.prompts import PROMPT_SETS, PromptSet
from service.modes import default_modes, named_endpoints

Dtype = Literal["float32", "bfloat16", "autocast-bfloat16"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)

REFERENCE: Dtype = "float32"
"""What other precisions are compared with."""


_PLACE = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")
_LACKING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_STEP = re.compile(r"\.(?P<key>[\w-]+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")

Steps = tuple[str | int, ...]
"""Keys of tables and indexes of arrays, from the document's top to a value."""


def parse_plan(text: str) -> PlanDocument:
    """The document that `text` is. Raises PlanError with 'line N: …' and the remedy."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line = found[1] if found else str(text.count("\n") + 1)
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
    table = next((TABLES[step] for step in steps if step in TABLES), PlanDocument)
    known = [field.name for field in msgspec.structs.fields(table)]
    if unknown := _UNKNOWN.match(what):
        near = difflib.get_close_matches(unknown["name"], known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
        return (*steps, unknown["name"]), f"unknown key `{unknown['name']}`: {hint}"
    if lacking := _LACKING.match(what):
        return steps, f"`{lacking['name']}` is missing: add it"
    key = next((step for step in reversed(steps) if isinstance(step, str)), "the plan")
    remedy = f"write one of {', '.join(VALUES[key])}" if key in VALUES else "change the value"
    return steps, f"`{key}`: {what[:1].lower()}{what[1:]}: {remedy}"


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
    try:
        for step in steps:
            content = content[step]
    except (KeyError, IndexError, TypeError):
        return False
    return bool(steps)


Count = Annotated[int, Meta(ge=1)]
Load = Annotated[float, Meta(gt=0, le=3)]
"""At 3 the queue grows by two in the time that one is answered: more shows nothing else."""

Rate = Annotated[float, Meta(gt=0, le=1e6)]
"""Requests per second. Infinity, which TOML knows, could not be kept."""

Place = Literal["all", "smallest", "middle"]
"""Batch sizes by their place among those of the plan; `middle` is the upper one of an even number."""

BatchSizes = Place | Count | Annotated[list[Place | Count], Meta(min_length=1)]
Counts = Count | Annotated[list[Count], Meta(min_length=1)]
PromptSets = PromptSet | Annotated[list[PromptSet], Meta(min_length=1)]


class ClosedLoop(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Cells of all modes with `concurrency` requests in flight, `requests` per round, and a control cell.

    Where several values are given, every combination is a cell of its own.
    """

    batch_sizes: BatchSizes = "all"
    prompts: PromptSets = "short"
    new_tokens: Counts = 32
    concurrency: Counts = 1
    requests: Count = 3

    def cells(self, modes: Sequence[str], sizes: Sequence[int]) -> Iterator[Cell]:
        """Its cells at the batch sizes `sizes`."""
        prompt_sets: list[PromptSet] = self.prompts if isinstance(self.prompts, list) else [self.prompts]
        axes = product(prompt_sets, _counts(self.new_tokens), _counts(self.concurrency))
        for prompts, tokens, concurrency in axes:
            yield from ladder_cells(modes, sizes, tokens, self.requests, prompts, concurrency)


class OpenLoop(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Cells of all modes whose requests arrive by a schedule of `arrivals`, `requests` per round.

    Either `loads`, shares of each mode's capacity and above 1 past saturation, or `rates`, in requests per
    second and the same for every mode.
    """

    batch_sizes: BatchSizes = "all"
    new_tokens: Counts = 32
    loads: Annotated[list[Load], Meta(min_length=1)] | None = None
    rates: Annotated[list[Rate], Meta(min_length=1)] | None = None
    arrivals: Arrivals = "poisson"
    requests: Count = 12

    def cells(self, modes: Sequence[str], sizes: Sequence[int]) -> Iterator[Cell]:
        """Its cells at the batch sizes `sizes`."""
        cell = Cell(mode="", batch_size=1, arrivals=self.arrivals, requests=self.requests)
        speeds = [{"load": load} for load in self.loads or ()] + [{"rate": rate} for rate in self.rates or ()]
        for batch, tokens, speed, mode in product(sizes, _counts(self.new_tokens), speeds, modes):
            yield msgspec.structs.replace(cell, mode=mode, batch_size=batch, new_tokens=tokens, **speed)


def _counts(value: Counts) -> list[int]:
    return value if isinstance(value, list) else [value]


class PlanDocument(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A plan file. `modes` None: the default ones. The rounds, warm-up passes and SLO as in `Plan`.

    `replicas`: the service may be several replicas behind a proxy, which is refused otherwise.
    """

    name: Annotated[str, Meta(min_length=1)]
    modes: Annotated[list[str], Meta(min_length=1)] | None = None
    batch_sizes: Annotated[list[Count], Meta(min_length=1)]
    replicas: bool = False
    seed: int = 0
    rounds: Count
    rounds_most: Count | None = None
    warmup_passes_least: Annotated[int, Meta(ge=2)] = 2
    warmup_passes_most: Annotated[int, Meta(ge=2)] = 6
    slo: SloTable | None = None
    closed_loop: list[ClosedLoop] = []
    open_loop: list[OpenLoop] = []


class DocumentError(PlanError):
    """A document that makes no plan; `steps` lead to what has to change: keys, and indexes of tables."""

    def __init__(self, message: str, *steps: str | int) -> None:
        super().__init__(message)
        self.steps = steps


def plan_of(document: PlanDocument) -> Plan:
    """The plan that `document` describes. Raises PlanError, a DocumentError where one place is at fault."""
    try:
        modes = tuple(named_endpoints(document.modes or default_modes()))
    except ValueError as error:
        raise DocumentError(str(error), "modes") from error
    if BASELINE not in modes:
        raise DocumentError(
            f"'{BASELINE}' is missing: every speed-up is against it, add it to the modes", "modes"
        )
    for least, most in (("rounds", "rounds_most"), ("warmup_passes_least", "warmup_passes_most")):
        low, high = getattr(document, least), getattr(document, most)
        if high is not None and high < low:
            raise DocumentError(f"{most} is {high}, less than the {low} of {least}: raise it", most)
    if not document.closed_loop:
        raise DocumentError("there is no [[closed_loop]]: add one, with `requests` at least")
    shared = ("seed", "rounds", "rounds_most", "warmup_passes_least", "warmup_passes_most", "replicas")
    plan = Plan(
        preset=document.name,
        cells=tuple(_cells(document, modes)),
        slo=_slo(document),
        **{name: getattr(document, name) for name in shared},
    )
    _check(plan)
    return plan


def _slo(document: PlanDocument) -> Slo | None:
    try:
        return None if document.slo is None else document.slo.slo
    except PlanError as error:
        raise DocumentError(str(error), "slo") from error


def _cells(document: PlanDocument, modes: Sequence[str]) -> Iterator[Cell]:
    """All cells, each once. Raises DocumentError for one that is in the document twice."""
    sizes = sorted(set(document.batch_sizes))
    seen = set[str]()
    tables: list[tuple[str, int, ClosedLoop | OpenLoop]] = [
        *(("closed_loop", index, table) for index, table in enumerate(document.closed_loop)),
        *(("open_loop", index, table) for index, table in enumerate(document.open_loop)),
    ]
    for name, index, table in tables:
        if isinstance(table, OpenLoop) and (table.loads is None) == (table.rates is None):
            message = "give `loads`, shares of each mode's capacity, or `rates`, per second: one of them"
            raise DocumentError(message, name, index)
        for cell in table.cells(modes, _chosen_sizes(table.batch_sizes, sizes, name, index)):
            if cell.name in seen:
                message = f"cell '{cell.name}' is in the plan twice: take it out of this block"
                raise DocumentError(message, name, index)
            seen.add(cell.name)
            yield cell


def _chosen_sizes(choice: BatchSizes, sizes: Sequence[int], name: str, index: int) -> list[int]:
    """The batch sizes of table `index` of `name`, each once, ascending."""
    found = set[int]()
    for one in choice if isinstance(choice, list) else [choice]:
        if one == "all":
            found |= set(sizes)
        elif isinstance(one, str):
            found.add(sizes[0] if one == "smallest" else sizes[len(sizes) // 2])
        elif one in sizes:
            found.add(one)
        else:
            message = f"batch size {one} is not one of the plan's, {', '.join(map(str, sizes))}: add it there"
            raise DocumentError(message, name, index, "batch_sizes")
    return sorted(found)


def _check(plan: Plan) -> None:
    """Raise PlanError where results of `plan` could not be compared."""
    for cell in plan.cells:
        # The first of a round wait for fewer: with this many, the median is one that waits for all.
        if not cell.open_loop and cell.requests < (least := 2 * cell.concurrency - 1):
            raise PlanError(
                f"cell '{cell.name}': {cell.requests} requests per round are over before {cell.concurrency} "
                f"are in flight for long: send at least {least}"
            )
        if cell.open_loop and cell.new_tokens == 1 and plan.slo and plan.slo.tpot_seconds is not None:
            raise PlanError(
                f"cell '{cell.name}': one token has no time per output token: leave tpot out of the SLO, or "
                "ask for more tokens"
            )
    works = {cell.work for cell in plan.cells if cell.open_loop}
    if plan.slo and plan.slo.e2e_of_eager is not None and len(works) != 1:
        raise PlanError(
            f"e2e_of_eager needs one latency of eager, and there are open-loop cells of {len(works)} kinds: "
            "give the SLO's e2e in seconds"
        )


TABLES: dict[str | int, type[msgspec.Struct]] = {
    "slo": SloTable,
    "closed_loop": ClosedLoop,
    "open_loop": OpenLoop,
}
"""The tables of a plan file, by their keys."""

VALUES = {
    "prompts": PROMPT_SETS,
    "batch_sizes": (*get_args(Place), "numbers from 1 on"),
    "arrivals": get_args(Arrivals),
}
"""Of keys whose values are words: which those may be."""


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


def toml_of(document: PlanDocument) -> str:
    """`document` as the text of a plan file, every key said; `parse_plan` gives the same document back."""
    content = msgspec.to_builtins(document)
    slo = content.pop("slo")
    arrays = {name: content.pop(name) for name in ("closed_loop", "open_loop")}
    text = "".join(_assignments(content))
    if slo is not None:
        text += "\n[slo]\n" + "".join(_assignments(slo))
    for name, tables in arrays.items():
        for table in tables:
            text += f"\n[[{name}]]\n" + "".join(_assignments(table))
    return text


def _assignments(table: Mapping[str, object]) -> Iterator[str]:
    for key, value in table.items():
        if value is not None:
            # TOML's basic strings, numbers and arrays of them are written as JSON's, but for one character.
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            yield f"{key} = {text}\n"
