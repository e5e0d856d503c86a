"""A plan as a document: what a plan file may say, and the plan that it makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from loadtests.plan.cells import (
    BASELINE,
    Cell,
    Plan,
    PlanError,
    check,
    ladder_cells,
    saturation_cells,
)
from loadtests.plan.dtypes import Dtype
from loadtests.plan.prompts import PromptSet
from service.protocol.modes import default_modes, named_modes

Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(gt=0, lt=1)]
Place = Literal["all", "smallest", "middle"]
"""Batch sizes by their place among those of the plan; `middle` is the upper one of an even number."""

BatchSizes = Place | Count | Annotated[list[Place | Count], Meta(min_length=1)]
Counts = Count | Annotated[list[Count], Meta(min_length=1)]
PromptSets = PromptSet | Annotated[list[PromptSet], Meta(min_length=1)]


class ClosedLoop(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Cells of all modes with `concurrency` requests in flight, `requests` per visit, and a control cell.

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
    """Cells of all modes whose requests arrive at `loads`, shares of the mode's capacity."""

    batch_sizes: BatchSizes = "all"
    new_tokens: Counts = 32
    loads: Annotated[list[Share], Meta(min_length=1)]
    requests: Count = 12

    def cells(self, modes: Sequence[str], sizes: Sequence[int]) -> Iterator[Cell]:
        """Its cells at the batch sizes `sizes`."""
        for batch, tokens in product(sizes, _counts(self.new_tokens)):
            yield from saturation_cells(modes, batch, self.loads, tokens, self.requests)


class PlanDocument(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A plan file. `modes` None: the default ones. The rounds and warm-up passes as in `Plan`.

    `dtypes`: precisions, each swept by the same plan with a service of its own; None: the service's default.
    """

    name: Annotated[str, Meta(min_length=1)]
    dtypes: Annotated[list[Dtype], Meta(min_length=1)] | None = None
    modes: Annotated[list[str], Meta(min_length=1)] | None = None
    batch_sizes: Annotated[list[Count], Meta(min_length=1)]
    seed: int = 0
    rounds: Count
    rounds_most: Count | None = None
    warmup_passes_least: Annotated[int, Meta(ge=2)] = 2
    warmup_passes_most: Annotated[int, Meta(ge=2)] = 6
    closed_loop: list[ClosedLoop] = []
    open_loop: list[OpenLoop] = []


class DocumentError(PlanError):
    """A document that makes no plan; `steps` lead to what has to change: keys, and indexes of blocks."""

    def __init__(self, message: str, *steps: str | int) -> None:
        super().__init__(message)
        self.steps = steps


def plan_of(document: PlanDocument) -> Plan:
    """The plan that `document` describes. Raises DocumentError where it cannot be run."""
    try:
        modes = tuple(named_modes(document.modes or default_modes()))
    except ValueError as error:
        raise DocumentError(str(error), "modes") from error
    if BASELINE not in modes:
        raise DocumentError(
            f"'{BASELINE}' is missing: every speed-up is against it, add it to the modes", "modes"
        )
    if twice := {dtype for dtype in document.dtypes or () if (document.dtypes or []).count(dtype) > 1}:
        raise DocumentError(f"{', '.join(sorted(twice))} is there twice: name each precision once", "dtypes")
    for least, most in (("rounds", "rounds_most"), ("warmup_passes_least", "warmup_passes_most")):
        low, high = getattr(document, least), getattr(document, most)
        if high is not None and high < low:
            raise DocumentError(f"{most} is {high}, less than the {low} of {least}: raise it", most)
    if not document.closed_loop:
        raise DocumentError("there is no [[closed_loop]]: add one, with `requests` at least")
    plan = Plan(
        preset=document.name,
        seed=document.seed,
        rounds=document.rounds,
        rounds_most=document.rounds_most,
        cells=tuple(_cells(document, modes)),
        warmup_passes_least=document.warmup_passes_least,
        warmup_passes_most=document.warmup_passes_most,
    )
    return check(plan)


def _cells(document: PlanDocument, modes: Sequence[str]) -> Iterator[Cell]:
    """All cells, each once. Raises DocumentError where a block has one of an earlier block."""
    sizes = sorted(set(document.batch_sizes))
    seen = set[str]()
    for name, index, block in _blocks(document):
        try:
            chosen = chosen_sizes(block.batch_sizes, sizes)
        except PlanError as error:
            raise DocumentError(str(error), name, index, "batch_sizes") from error
        for cell in block.cells(modes, chosen):
            if cell.name in seen:
                message = f"cell '{cell.name}' is in the plan twice: take it out of this block"
                raise DocumentError(message, name, index)
            seen.add(cell.name)
            yield cell


def _blocks(document: PlanDocument) -> Iterator[tuple[str, int, ClosedLoop | OpenLoop]]:
    """Every block with its table's name and its index there."""
    for index, closed in enumerate(document.closed_loop):
        yield "closed_loop", index, closed
    for index, opened in enumerate(document.open_loop):
        yield "open_loop", index, opened


def chosen_sizes(choice: BatchSizes, sizes: Sequence[int]) -> list[int]:
    """The batch sizes of a block, each once, ascending. Raises PlanError for one that the plan lacks."""
    found = set[int]()
    for one in choice if isinstance(choice, list) else [choice]:
        if one == "all":
            found |= set(sizes)
        elif isinstance(one, str):
            found.add(sizes[0] if one == "smallest" else sizes[len(sizes) // 2])
        elif one in sizes:
            found.add(one)
        else:
            have = ", ".join(map(str, sizes))
            raise PlanError(f"batch size {one} is not one of the plan's, {have}: add it there")
    return sorted(found)


def _counts(value: Counts) -> list[int]:
    return list(value) if isinstance(value, list) else [value]
