"""A plan as a document: what a plan file may say, and the plan that it makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from loadtests.plan.blocks import ClosedLoop, Count, OpenLoop, chosen_sizes
from loadtests.plan.cells import BASELINE, Cell, Plan, PlanError
from loadtests.plan.checks import check
from loadtests.plan.dtypes import Dtype
from loadtests.plan.slo import Slo, SloTable
from service.modes import default_modes, named_endpoints


class PlanDocument(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A plan file. `modes` None: the default ones. The rounds, warm-up passes and SLO as in `Plan`.

    `dtypes`: precisions, each swept by the same plan with a service of its own; None: the service's default.
    `replicas`: that the service may be several replicas behind a proxy, which is refused else.
    """

    name: Annotated[str, Meta(min_length=1)]
    dtypes: Annotated[list[Dtype], Meta(min_length=1)] | None = None
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
    """A document that makes no plan; `steps` lead to what has to change: keys, and indexes of blocks."""

    def __init__(self, message: str, *steps: str | int) -> None:
        super().__init__(message)
        self.steps = steps


def plan_of(document: PlanDocument) -> Plan:
    """The plan that `document` describes. Raises DocumentError where it cannot be run."""
    try:
        modes = tuple(named_endpoints(document.modes or default_modes()))
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
        slo=_slo(document),
        replicas=document.replicas,
    )
    return check(plan)


def _slo(document: PlanDocument) -> Slo | None:
    try:
        return None if document.slo is None else document.slo.slo
    except PlanError as error:
        raise DocumentError(str(error), "slo") from error


def _cells(document: PlanDocument, modes: Sequence[str]) -> Iterator[Cell]:
    """All cells, each once. Raises DocumentError where a block has one of an earlier block."""
    sizes = sorted(set(document.batch_sizes))
    seen = set[str]()
    for name, index, block in _blocks(document):
        if isinstance(block, OpenLoop):
            _check_arrivals(index, block)
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


def _check_arrivals(index: int, block: OpenLoop) -> None:
    """Raise DocumentError where a block does not say at which rates its requests arrive."""
    if (block.loads is None) == (block.rates is None):
        raise DocumentError(
            "give `loads`, shares of what each mode can do, or `rates`, in requests per second: one of them",
            "open_loop",
            index,
        )
