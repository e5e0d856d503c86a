"""Plan files: TOML read strictly, with errors that name file, place and remedy; the plan that one makes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from loadtests.plan.cells import BASELINE, Arrivals, Cell, Plan, PlanError, PromptSet
from service.modes import default_modes, named_modes

Dtype = Literal["float32", "bfloat16", "autocast-bfloat16"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)

REFERENCE: Dtype = "float32"
"""What other precisions are compared with."""


KEYS = "docs/sweeps.md has every key and its values"
"""The remedy for what no plan file may say."""


def parse_plans(text: str) -> list[PlanDocument]:
    """The documents of `text`, one of each of its [[models]]. Raises PlanError with place and remedy."""
    try:
        content = tomllib.loads(text)
        models = msgspec.convert(
            content.pop("models", [{}]), Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=3)]
        )
        return [msgspec.convert({**content, **model}, PlanDocument) for model in models]
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"not TOML: {error}; mend the line") from error
    except msgspec.ValidationError as error:
        raise PlanError(f"{error}; {KEYS}") from error


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
        axes = product(prompt_sets, _counts(self.new_tokens), _counts(self.concurrency), sizes)
        for prompts, tokens, concurrency, batch in axes:
            cell = Cell(
                mode=BASELINE,
                batch_size=batch,
                prompt_set=prompts,
                new_tokens=tokens,
                concurrency=concurrency,
                requests=self.requests,
            )
            yield from (msgspec.structs.replace(cell, mode=mode) for mode in modes)
            yield msgspec.structs.replace(cell, control=True)


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

    def __post_init__(self) -> None:
        if (self.loads is None) == (self.rates is None):
            raise ValueError("Give either `loads`, shares of each mode's capacity, or `rates`, per second")

    def cells(self, modes: Sequence[str], sizes: Sequence[int]) -> Iterator[Cell]:
        """Its cells at the batch sizes `sizes`."""
        cell = Cell(mode="", batch_size=1, arrivals=self.arrivals, requests=self.requests)
        speeds = [{"load": load} for load in self.loads or ()] + [{"rate": rate} for rate in self.rates or ()]
        for batch, tokens, speed, mode in product(sizes, _counts(self.new_tokens), speeds, modes):
            yield msgspec.structs.replace(cell, mode=mode, batch_size=batch, new_tokens=tokens, **speed)


def _counts(value: Counts) -> list[int]:
    return value if isinstance(value, list) else [value]


class PlanDocument(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A plan file. `modes` None: the default ones. The rounds and warm-up passes as in `Plan`.

    It is measured in so many `starts` of a service of `model`, None: of the service's own.
    `replicas`: the service may be several replicas behind a proxy, which is refused otherwise.
    """

    name: Annotated[str, Meta(min_length=1)]
    model: Annotated[str, Meta(min_length=1)] | None = None
    starts: Annotated[int, Meta(ge=1, le=8)] = 1
    modes: Annotated[list[str], Meta(min_length=1)] | None = None
    batch_sizes: Annotated[list[Count], Meta(min_length=1)]
    replicas: bool = False
    seed: int = 0
    rounds: Count
    rounds_most: Count | None = None
    warmup_passes_least: Annotated[int, Meta(ge=2)] = 2
    warmup_passes_most: Annotated[int, Meta(ge=2)] = 6
    closed_loop: list[ClosedLoop] = []
    open_loop: list[OpenLoop] = []


def plan_of(document: PlanDocument) -> Plan:
    """The plan that `document` describes. Raises PlanError."""
    try:
        modes = tuple(named_modes(document.modes or default_modes()))
    except ValueError as error:
        raise PlanError(str(error)) from error
    if BASELINE not in modes:
        raise PlanError(f"'{BASELINE}' is missing: every speed-up is against it, add it to the modes")
    for least, most in (("rounds", "rounds_most"), ("warmup_passes_least", "warmup_passes_most")):
        low, high = getattr(document, least), getattr(document, most)
        if high is not None and high < low:
            raise PlanError(f"{most} is {high}, less than the {low} of {least}: raise it")
    if not document.closed_loop:
        raise PlanError("there is no [[closed_loop]]: add one, with `requests` at least")
    shared = ("seed", "rounds", "rounds_most", "warmup_passes_least", "warmup_passes_most", "replicas")
    plan = Plan(
        preset=document.name,
        cells=tuple(_cells(document, modes)),
        **{name: getattr(document, name) for name in shared},
    )
    _check(plan)
    return plan


def _cells(document: PlanDocument, modes: Sequence[str]) -> Iterator[Cell]:
    """All cells, each once. Raises PlanError for one that is in the document twice."""
    sizes = sorted(set(document.batch_sizes))
    seen = set[str]()
    tables: list[ClosedLoop | OpenLoop] = [*document.closed_loop, *document.open_loop]
    for table in tables:
        for cell in table.cells(modes, _chosen_sizes(table.batch_sizes, sizes)):
            if cell.name in seen:
                raise PlanError(f"cell '{cell.name}' is in the plan twice: take it out of one of its blocks")
            seen.add(cell.name)
            yield cell


def _chosen_sizes(choice: BatchSizes, sizes: Sequence[int]) -> list[int]:
    """The batch sizes of a table, each once, ascending."""
    by_place = {"all": sizes, "smallest": sizes[:1], "middle": [sizes[len(sizes) // 2]]}
    found = set[int]()
    for one in choice if isinstance(choice, list) else [choice]:
        if isinstance(one, int) and one not in sizes:
            shown = ", ".join(map(str, sizes))
            raise PlanError(f"batch size {one} is not one of the plan's, {shown}: add it there")
        found |= {one} if isinstance(one, int) else set(by_place[one])
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


def read_plan_file(path: Path) -> list[PlanDocument]:
    """The documents of `path`. Raises PlanError, naming file, place and remedy, for what makes no plan."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the plan {path}: {error}; name a TOML file") from error
    try:
        documents = parse_plans(text)
        for document in documents:
            plan_of(document)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error
    return documents


def toml_of(document: PlanDocument) -> str:
    """`document` as the text of a plan file: every key but `starts` and `model`; `parse_plans` reads it."""
    content = msgspec.to_builtins(msgspec.structs.replace(document, model=None))
    del content["starts"]
    arrays = {name: content.pop(name) for name in ("closed_loop", "open_loop")}
    text = "".join(_assignments(content))
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
