"""Computations whose tape is read: a menu, the model's block or step, or an expression of the user's."""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from service.anatomy.errors import StudyError
from service.anatomy.tape.storages import OwnerKind, owned_by, tensors_in
from service.measure.cases import Bench
from service.protocol.expressions import OF_THE_MODEL, TAPE_EXPRESSIONS
from service.protocol.messages import Phase

ROWS = 32
"""Of the activation `x`; `WIDTH` is its other size, as the texts of TAPE_EXPRESSIONS have them."""

WIDTH = 64

own_expressions: ContextVar[bool] = ContextVar("own_expressions", default=False)
"""Whether an expression may be the user's own. Only the command line sets it, for its user; the anatomy
process behind HTTP never does, so that no request is evaluated."""

_FILE = "<expression>"
_ALLOWED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Call, ast.keyword, ast.Attribute,
    ast.Name, ast.Load, ast.Constant, ast.Tuple, ast.List, ast.Subscript, ast.Slice,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Computation:
    """`run` computes the result again. `owned` are the tensors that exist before, by kind and name."""

    name: str
    source: str
    run: Callable[[], Tensor]
    owned: list[tuple[OwnerKind, str, Tensor]]

    def owner_of(self, leaf: Tensor) -> tuple[OwnerKind, str]:
        """Kind and name of `leaf`."""
        found = ((kind, name) for kind, name, tensor in self.owned if tensor is leaf)
        return next(found, ("intermediate", "unnamed"))


def choose_computation(bench: Bench, name: str, bucket: int, phase: Phase) -> Computation:
    """The computation `name`; where `own_expressions` is set, `name` may be an expression.

    Raises StudyError, which lists the known names, for any other, and for an expression that cannot work.
    """
    if name == "block":
        return _block(bench, bucket, phase)
    if name == "step":
        return _step(bench, bucket, phase)
    if name in TAPE_EXPRESSIONS:
        return _expression(bench, name, TAPE_EXPRESSIONS[name])
    if own_expressions.get():
        return _expression(bench, "own", name)
    known = ", ".join((*OF_THE_MODEL, *TAPE_EXPRESSIONS))
    raise StudyError("invalid_request", f"no expression '{name[:64]}'; try one of {known}", "expression")


def _expression(bench: Bench, name: str, source: str) -> Computation:
    """Evaluates `source`. The check of names catches mistakes; it is not a sandbox."""
    code = compile(_checked(source), _FILE, "eval")
    # The text of a calling line shows whether a `detach` was written there: see `is_autograds_copy`.
    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    generator = torch.Generator().manual_seed(0)

    def tensor(*shape: int) -> Tensor:
        values = torch.randn(*shape, generator=generator).to(bench.device)
        return values.requires_grad_()

    names: dict[str, Any] = {"x": tensor(ROWS, WIDTH), "w": tensor(WIDTH, WIDTH), "b": tensor(WIDTH), "F": F}

    def run() -> Tensor:
        try:
            result = eval(code, dict(names))
        except Exception as error:
            raise _refused(f"{source}: {type(error).__name__}: {error}") from error
        if not isinstance(result, Tensor):
            raise _refused(f"{source} is a {type(result).__name__}: it must be one tensor")
        return result

    owned: list[tuple[OwnerKind, str, Tensor]] = [
        ("input", "x", names["x"]),
        ("parameter", "w", names["w"]),
        ("parameter", "b", names["b"]),
    ]
    return Computation(name, source, run, owned)


def _checked(source: str) -> ast.Expression:
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError) as error:
        raise _refused(f"'{source[:64]}' is not an expression: {error}") from error
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise _refused(f"{type(node).__name__} is not allowed here: use arithmetic, methods and F")
        if isinstance(node, ast.Name) and node.id not in {"x", "w", "b", "F"}:
            raise _refused(f"unknown name '{node.id}': use x, w, b and F (torch.nn.functional)")
        if isinstance(node, ast.Attribute) and not _public(node):
            raise _refused(f"'{ast.unparse(node)}' is not a public function or method")
    return tree


def _public(attribute: ast.Attribute) -> bool:
    if attribute.attr.startswith("_"):
        return False
    if isinstance(attribute.value, ast.Name) and attribute.value.id == "F":
        found = getattr(F, attribute.attr, None)
        return callable(found) and not isinstance(found, types.ModuleType)
    return True


def _refused(message: str) -> StudyError:
    return StudyError("invalid_request", message[:2000], "expression")


def _step(bench: Bench, bucket: int, phase: Phase) -> Computation:
    buffers = bench.buffers[bucket]

    def run() -> Tensor:
        with _precision(bench):
            logits: Tensor = bench.model(*buffers.arguments(phase))[0]
        return logits

    source = f"one {phase} step, batch {bucket}"
    return Computation("step", source, run, list(owned_by(bench, buffers)))


def _block(bench: Bench, bucket: int, phase: Phase) -> Computation:
    """The first layer, on its inputs of a real step; its first input requires grad, as in later layers."""
    buffers = bench.buffers[bucket]
    block = _first_layer(bench.model)
    calls: list[inspect.BoundArguments] = []

    def note(layer: nn.Module, given: tuple[object, ...], named: dict[str, object]) -> None:
        calls.append(inspect.signature(layer.forward).bind(*given, **named))

    hook = block.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad(), _precision(bench):
            bench.model(*buffers.arguments(phase))
    finally:
        hook.remove()
    bound = calls[0]
    first_name = next(iter(bound.arguments))
    bound.arguments[first_name] = bound.arguments[first_name].detach().clone().requires_grad_()

    def run() -> Tensor:
        with _precision(bench):
            result = block(*bound.args, **bound.kwargs)
        first: Tensor = result[0] if isinstance(result, tuple) else result
        return first

    given: list[tuple[OwnerKind, str, Tensor]] = [
        ("input", name, t) for name, value in bound.arguments.items() for t in tensors_in(value)
    ]
    source = f"the first of {bench.model.config.layers} blocks in one {phase} step, batch {bucket}"
    return Computation("block", source, run, [*owned_by(bench, buffers), *given])


def _first_layer(model: nn.Module) -> nn.Module:
    """The first module of the longest ModuleList, which in a decoder is that of its layers."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len)[0]


def _precision(bench: Bench) -> AbstractContextManager[object]:
    """Autocast, where the served precision uses it."""
    lowered = bench.precision.autocast
    return nullcontext() if lowered is None else torch.autocast(bench.device.type, lowered)
