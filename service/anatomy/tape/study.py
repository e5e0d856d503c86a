"""Study of the tape: of an expression or the model's block, with what it and each mode's step save."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from service.anatomy.common import (
    GRAD_MODES,
    Report,
    StudyError,
    autocast_of,
    resolve_bucket,
    resolve_case,
    resolve_modes,
)
from service.anatomy.operators.calls import tensors_in
from service.anatomy.tape.graph import (
    BackwardNode,
    ForwardOperator,
    ForwardRecorder,
    Held,
    Leaf,
    OwnerKind,
    Storages,
    TapeOfStep,
    held,
    owned_by,
    record,
    saved_during,
    tape_of_step,
)
from service.measure.cases import Bench
from service.modes import GradMode
from service.records import Phase
from service.study_names import OF_THE_MODEL, TAPE_EXPRESSIONS


class TapeArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`expression` is `block`, `step` or a key of `TAPE_EXPRESSIONS`; `mode` None is every configured one."""

    expression: str = "block"
    batch_size: int = 1
    phase: Phase = "decode"
    mode: str | None = None


class TapeFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A tape. `backward` is in the order in which autograd's engine would run it.

    `held` sums the nodes' saved tensors; `grad_bytes` is the size of the parameters' `.grad`; `untaped` is
    the same computation with grad mode off.
    """

    expression: str
    source: str
    device: str
    batch_bucket: int
    phase: Phase
    forward: list[ForwardOperator]
    backward: list[BackwardNode]
    leaves: list[Leaf]
    held: Held
    grad_bytes: int
    untaped: list[UntapedRun]
    steps: list[TapeOfStep]


def read_tape(bench: Bench, arguments: TapeArguments, report: Report) -> TapeFinding:
    """Record and read the tape. Raises StudyError for arguments that cannot work."""
    modes = resolve_modes(bench, arguments.mode)
    bucket = resolve_bucket(bench, arguments.batch_size)
    computation = choose_computation(bench, arguments.expression, bucket, arguments.phase)
    report(f"recording the tape of {computation.source}")
    tape = record(computation.run, Storages(computation.owned))
    untaped = [run_untaped(computation.run, computation.owned, grad) for grad in OFF]
    steps = []
    for mode in modes:
        case = resolve_case(bench, mode, bucket, arguments.phase, report)
        report(f"one step of {mode}")
        steps.append(tape_of_step(bench, case))
    return TapeFinding(
        expression=arguments.expression,
        source=computation.source,
        device=bench.device.type,
        batch_bucket=bucket,
        phase=arguments.phase,
        forward=tape.forward,
        backward=tape.nodes,
        leaves=tape.leaves,
        held=held(tensor for node in tape.nodes for tensor in node.saved),
        grad_bytes=sum(leaf.grad_bytes for leaf in tape.leaves if leaf.kind == "parameter"),
        untaped=untaped,
        steps=steps,
    )


OFF: tuple[GradMode, ...] = ("no_grad", "inference_mode")


class UntapedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One computation under `grad`: its operators, and what hooks saw saved."""

    grad: GradMode
    forward: list[ForwardOperator]
    held: Held


def run_untaped(
    run: Callable[[], Tensor], owned: list[tuple[OwnerKind, str, Tensor]], grad: GradMode
) -> UntapedRun:
    """Run it twice under `grad`, one of `OFF`: recorded, and with saved-tensor hooks."""
    with GRAD_MODES[grad]():
        with ForwardRecorder() as recorder:
            run()
        saved = saved_during(run, Storages(owned))
    return UntapedRun(grad=grad, forward=[operator for operator, _ in recorder.seen], held=held(saved))


ROWS, WIDTH = 32, 64
"""Of the activation `x`, as the texts of TAPE_EXPRESSIONS have them."""


@dataclass(frozen=True, slots=True)
class Computation:
    """`run` computes the result again. `owned` are the tensors that exist before, by kind and name."""

    source: str
    run: Callable[[], Tensor]
    owned: list[tuple[OwnerKind, str, Tensor]]


def choose_computation(bench: Bench, name: str, bucket: int, phase: Phase) -> Computation:
    """The computation `name`. Raises StudyError, which lists the known names, for an unknown one."""
    if name == "block":
        return _block(bench, bucket, phase)
    if name == "step":
        return _step(bench, bucket, phase)
    if name in TAPE_EXPRESSIONS:
        return _expression(bench, TAPE_EXPRESSIONS[name])
    known = ", ".join((*OF_THE_MODEL, *TAPE_EXPRESSIONS))
    raise StudyError("invalid_request", f"no expression '{name[:64]}'; try one of {known}", "expression")


def _expression(bench: Bench, source: str) -> Computation:
    code = compile(source, "<expression>", "eval")
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (ROWS, WIDTH), "w": (WIDTH, WIDTH), "b": (WIDTH,)}
    tensors = {
        name: torch.randn(shape, generator=generator).to(bench.device).requires_grad_()
        for name, shape in shapes.items()
    }

    def run() -> Tensor:
        result: Tensor = eval(code, {**tensors, "F": F})
        return result

    kinds: dict[str, OwnerKind] = {"x": "input", "w": "parameter", "b": "parameter"}
    return Computation(source, run, [(kinds[name], name, tensor) for name, tensor in tensors.items()])


def _step(bench: Bench, bucket: int, phase: Phase) -> Computation:
    buffers = bench.buffers[bucket]

    def run() -> Tensor:
        with autocast_of(bench.device, bench.precision):
            logits: Tensor = bench.model(*buffers.arguments(phase))[0]
        return logits

    source = f"one {phase} step, batch {bucket}"
    return Computation(source, run, list(owned_by(bench, buffers)))


def _block(bench: Bench, bucket: int, phase: Phase) -> Computation:
    """The first layer, on its inputs of a real step; its first input requires grad, as in later layers."""
    buffers = bench.buffers[bucket]
    block = _first_layer(bench.model)
    calls: list[inspect.BoundArguments] = []

    def note(layer: nn.Module, given: tuple[object, ...], named: dict[str, object]) -> None:
        calls.append(inspect.signature(layer.forward).bind(*given, **named))

    hook = block.register_forward_pre_hook(note, with_kwargs=True)
    with hook, torch.no_grad(), autocast_of(bench.device, bench.precision):
        bench.model(*buffers.arguments(phase))
    bound = calls[0]
    first_name = next(iter(bound.arguments))
    bound.arguments[first_name] = bound.arguments[first_name].detach().clone().requires_grad_()

    def run() -> Tensor:
        with autocast_of(bench.device, bench.precision):
            result = block(*bound.args, **bound.kwargs)
        first: Tensor = result[0] if isinstance(result, tuple) else result
        return first

    given: list[tuple[OwnerKind, str, Tensor]] = [
        ("input", name, t) for name, value in bound.arguments.items() for t in tensors_in(value)
    ]
    source = f"the first of {bench.model.config.layers} blocks in one {phase} step, batch {bucket}"
    return Computation(source, run, [*owned_by(bench, buffers), *given])


def _first_layer(model: nn.Module) -> nn.Module:
    """The first module of the longest ModuleList, which in a decoder is that of its layers."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len)[0]
