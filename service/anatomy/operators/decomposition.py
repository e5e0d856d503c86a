"""A step in core ATen: how many operators its graph has before and after decomposition."""

from __future__ import annotations

import warnings
from collections import Counter

import msgspec
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map

from service.anatomy.operators.registry import is_core
from service.measure.cases import Bench, Case
from service.step.package import PositionalStep


class OperatorCount(msgspec.Struct, frozen=True, kw_only=True):
    """How often the overload `name` is in the graph before and after; `core`: it is of core ATen."""

    name: str
    before: int
    after: int
    core: bool


class Decomposition(msgspec.Struct, frozen=True, kw_only=True):
    """The step's graph by `torch.export`: as written, composite operators whole, and in core ATen.

    `after` counts operators once torch's core ATen decompositions have replaced what they can, and writes in
    place are functional. `not_core` of these are not tagged as core: a backend has to know them besides.
    `operators` has every overload of both, those that were most frequent before first.
    """

    before: int
    after: int
    distinct_before: int
    distinct_after: int
    not_core: int
    operators: list[OperatorCount]


def decompose(bench: Bench, case: Case) -> Decomposition:
    """Export the served model's step of the phase and bucket of `case`; nothing of it is run.

    Raises whatever `torch.export` raises for a model that it cannot export.
    """
    arguments = case.buffers.arguments(case.phase)
    # Tensors of inference mode cannot be traced into an exported program.
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own use of its tree of arguments
        # Not the arguments themselves: export takes off the marks of those that it is given.
        program = torch.export.export(PositionalStep(bench.model), tree_map(Tensor.detach, arguments))
        return compare(_counted(program), _counted(program.run_decompositions()))


def compare(before: Counter[str], after: Counter[str]) -> Decomposition:
    """The finding of both graphs' counts by overload."""
    names = sorted(before | after, key=lambda name: (-before[name], -after[name], name))
    core = {name for name in names if is_core(name)}
    return Decomposition(
        before=before.total(),
        after=after.total(),
        distinct_before=len(before),
        distinct_after=len(after),
        not_core=sum(count for name, count in after.items() if name not in core),
        operators=[
            OperatorCount(name=name, before=before[name], after=after[name], core=name in core)
            for name in names
        ],
    )


def _counted(program: ExportedProgram) -> Counter[str]:
    """Operators of the graph by overload; reading one of several results is none."""
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    return Counter(target.name() for target in targets if isinstance(target, OpOverload))
