"""The blocks of a plan file, and the cells that each of them makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from loadtests.plan.arrivals import Arrivals
from loadtests.plan.cells import Cell, PlanError, ladder_cells
from loadtests.plan.checks import LOAD_MOST, RATE_MOST
from loadtests.plan.prompts import PromptSet

Count = Annotated[int, Meta(ge=1)]
Load = Annotated[float, Meta(gt=0, le=LOAD_MOST)]
Rate = Annotated[float, Meta(gt=0, le=RATE_MOST)]
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
    """Cells of all modes whose requests arrive by a schedule of `arrivals`, `requests` per visit.

    Either `loads`, shares of what each mode can do and above 1 past saturation, or `rates`, in requests per
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
        speeds: list[tuple[float | None, float | None]] = [(load, None) for load in self.loads or ()]
        speeds += [(None, rate) for rate in self.rates or ()]
        axes = product(sizes, _counts(self.new_tokens), speeds, modes)
        for batch, tokens, (load, rate), mode in axes:
            yield Cell(
                mode=mode,
                batch_size=batch,
                new_tokens=tokens,
                load=load,
                rate=rate,
                arrivals=self.arrivals,
                requests=self.requests,
            )


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
