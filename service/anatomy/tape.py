"""Study of the tape: of an expression or the model's block, with what it and each mode's step save."""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.autograd.graph import Node
from torch.nn import functional as F

from service.anatomy.common import (
    GRAD_MODES,
    Report,
    StudyError,
    autocast_of,
    resolve_bucket,
    resolve_case,
    resolve_modes,
    resolve_phase,
)
from service.anatomy.operators.calls import CallsSeen, is_view, tensors_in
from service.measure.cases import AnyBench, AnyCase, Bench
from service.modes import MODES, GradMode
from service.records import Phase
from service.step.buffers import StepInputs
from service.step.profiling import chrome_events, new_session
from service.study_names import OF_THE_MODEL, TAPE_EXPRESSIONS


class TapeArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`expression` is `block`, `step` or a key of `TAPE_EXPRESSIONS`; `mode` None is every configured one."""

    expression: str = "block"
    batch_size: int = 1
    phase: Phase | None = None
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
    phase = resolve_phase(bench, arguments.phase)
    computation = choose_computation(bench, arguments.expression, bucket, phase)
    report(f"recording the tape of {computation.source}")
    tape = record(computation.run, Storages(computation.owned))
    untaped = [run_untaped(computation.run, computation.owned, grad) for grad in OFF]
    steps = []
    for mode in modes:
        case = resolve_case(bench, mode, bucket, phase, report)
        report(f"one step of {mode}")
        steps.append(tape_of_step(bench, case))
    return TapeFinding(
        expression=arguments.expression,
        source=computation.source,
        device=bench.device.type,
        batch_bucket=bucket,
        phase=phase,
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


# A tape: forward operators, grad_fn nodes in backward order, and the tensors that they saved


class ForwardOperator(msgspec.Struct, frozen=True, kw_only=True):
    """One operator below autograd, its grad_fn node, and the memory that its results allocated."""

    operator: str
    shape: tuple[int, ...]
    new_bytes: int
    is_view: bool
    node: int | None


class BackwardNode(msgspec.Struct, frozen=True, kw_only=True):
    """One grad_fn node, by its place in the engine's order, and the nodes that receive its gradients."""

    index: int
    name: str
    feeds: tuple[int, ...]
    saved: tuple[SavedTensor, ...]


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that gets a `.grad`, accumulated by `node`; an `input` stands for an activation."""

    name: str
    kind: OwnerKind
    shape: tuple[int, ...]
    grad_bytes: int
    node: int


class ForwardRecorder(CallsSeen):
    """Records every operator with the sequence number of the node made for it, -1 where none was."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[ForwardOperator, int]] = []
        self._newest = _newest_node()

    def see(self, func: OpOverload, given: list[Tensor], made: list[Tensor]) -> None:
        """Record the call; autograd makes an operator's node before it calls the operator."""
        before, self._newest = self._newest, _newest_node()
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        new = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in made}
        operator = ForwardOperator(
            operator=str(func),
            shape=tuple(made[0].shape) if made else (),
            new_bytes=sum(size for address, size in new.items() if address not in known),
            is_view=is_view(func, given, made),
            node=None,
        )
        self.seen.append((operator, self._newest if self._newest != before else -1))


class Tape(NamedTuple):
    forward: list[ForwardOperator]
    nodes: list[BackwardNode]
    leaves: list[Leaf]


def record(run: Callable[[], Tensor], storages: Storages) -> Tape:
    """The tape of `run`'s result, with grad mode on."""
    with torch.enable_grad(), ForwardRecorder() as recorder:
        result = run()
    assert result.grad_fn is not None
    numbers = {node: index for index, node in enumerate(execution_order(result.grad_fn))}
    by_sequence = {node._sequence_nr(): index for node, index in numbers.items()}
    return Tape(
        forward=[
            msgspec.structs.replace(operator, node=by_sequence.get(sequence))
            for operator, sequence in recorder.seen
        ],
        nodes=[
            BackwardNode(
                index=index,
                name=short_name(node),
                feeds=tuple(numbers[to] for to, _ in node.next_functions if to is not None),
                saved=tuple(storages.saved(name, tensor) for name, tensor in saved_by(node)),
            )
            for node, index in numbers.items()
        ],
        leaves=[
            _leaf(node.variable, index, storages)  # type: ignore[attr-defined]
            for node, index in numbers.items()
            if "AccumulateGrad" in node.name()
        ],
    )


def _leaf(leaf: Tensor, node: int, storages: Storages) -> Leaf:
    kind, name = storages.owner(leaf)
    return Leaf(name=name or "unnamed", kind=kind, shape=tuple(leaf.shape), grad_bytes=leaf.nbytes, node=node)


def saved_during(run: Callable[[], object], storages: Storages) -> list[SavedTensor]:
    """Every tensor that autograd saves while `run` runs, by saved-tensor hooks, whether or not it is kept."""
    seen: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    described = [storages.saved("saved", tensor) for tensor in seen]
    del result
    return described


def _newest_node() -> int:
    return int(torch._C._autograd._get_sequence_nr()) - 1


SAVED_PREFIX = "_saved_"


def execution_order(root: Node) -> list[Node]:
    """Every node below `root`, in the order of autograd's engine: of the ready ones the newest.

    AccumulateGrad nodes have the largest sequence number, so they run as soon as they are ready.
    """
    waiting: dict[Node, int] = {root: 0}
    stack = [root]
    while stack:
        for to, _ in stack.pop().next_functions:
            if to is None:
                continue
            if to not in waiting:
                waiting[to] = 0
                stack.append(to)
            waiting[to] += 1
    ready = [(-root._sequence_nr(), 0, root)]
    order = []
    tie = 0
    while ready:
        node = heapq.heappop(ready)[2]
        order.append(node)
        for to, _ in node.next_functions:
            if to is not None:
                waiting[to] -= 1
                if not waiting[to]:
                    tie += 1
                    heapq.heappush(ready, (-to._sequence_nr(), tie, to))
    return order


def saved_by(node: Node) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors that `node` saved. Raises StudyError for one that was changed in place since."""
    try:
        for attribute in dir(node):
            if attribute.startswith(SAVED_PREFIX):
                value = getattr(node, attribute)
                name = attribute.removeprefix(SAVED_PREFIX)
                if isinstance(value, Tensor):
                    yield name, value
                elif isinstance(value, tuple):
                    yield from ((f"{name}[{i}]", t) for i, t in enumerate(value) if isinstance(t, Tensor))
        # A torch.autograd.Function written in Python has its saved tensors in one attribute.
        for number, tensor in enumerate(getattr(node, "saved_tensors", ())):
            if isinstance(tensor, Tensor):
                yield f"saved_tensors[{number}]", tensor
    except RuntimeError as error:
        message = f"{short_name(node)}: {error}; do not change in place a tensor that backward needs"
        raise StudyError("invalid_request", message[:2000], "expression") from error


def short_name(node: Node) -> str:
    return node.name().removeprefix("torch::autograd::")


OwnerKind = Literal["parameter", "buffer", "cache", "input", "intermediate"]
"""`intermediate`: made by the step itself, and kept alive by nothing but the tape."""


class SavedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A saved tensor of a grad_fn node. `storage` numbers storages: equal numbers are the same memory.

    `tensor_bytes` is the size of its elements, `storage_bytes` that of its storage: for a view, of its base.
    `of` names the parameter, buffer or input.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    tensor_bytes: int
    storage_bytes: int
    storage: int
    kind: OwnerKind
    of: str | None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over saved tensors; `storage_bytes` counts each storage once, and `by_kind` splits it.

    `own_bytes` are the intermediates, which only the tape keeps alive.
    """

    tensors: int
    tensor_bytes: int
    storages: int
    storage_bytes: int
    by_kind: dict[OwnerKind, int]
    own_bytes: int


class Storages:
    """Numbers storages in order of first use; `owned` are the tensors that exist before the tape."""

    def __init__(self, owned: Iterable[tuple[OwnerKind, str, Tensor]]) -> None:
        self._owners: dict[int, tuple[OwnerKind, str | None]] = {}
        self._numbers: dict[int, int] = {}
        for kind, name, tensor in owned:
            self._owners.setdefault(_address(tensor), (kind, name))

    def owner(self, tensor: Tensor) -> tuple[OwnerKind, str | None]:
        return self._owners.get(_address(tensor), ("intermediate", None))

    def saved(self, name: str, tensor: Tensor) -> SavedTensor:
        """Describe `tensor`, which must outlive the descriptions of others: addresses are reused."""
        address = _address(tensor)
        kind, of = self.owner(tensor)
        return SavedTensor(
            name=name,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            tensor_bytes=tensor.nbytes,
            storage_bytes=tensor.untyped_storage().nbytes(),
            storage=self._numbers.setdefault(address, len(self._numbers)),
            kind=kind,
            of=of,
        )


def held(saved: Iterable[SavedTensor]) -> Held:
    every = list(saved)
    by_storage = {tensor.storage: tensor for tensor in every}.values()
    by_kind: dict[OwnerKind, int] = {}
    for tensor in by_storage:
        by_kind[tensor.kind] = by_kind.get(tensor.kind, 0) + tensor.storage_bytes
    return Held(
        tensors=len(every),
        tensor_bytes=sum(tensor.tensor_bytes for tensor in every),
        storages=len(by_storage),
        storage_bytes=sum(by_kind.values()),
        by_kind=by_kind,
        own_bytes=by_kind.get("intermediate", 0),
    )


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    return sum({_address(t): t.untyped_storage().nbytes() for t in tensors}.values())


def owned_by(bench: AnyBench, inputs: StepInputs) -> Iterator[tuple[OwnerKind, str, Tensor]]:
    """Tensors that exist before a step of what is served: weights, buffers, cache and inputs."""
    for name, parameter in bench.module.named_parameters():
        yield "parameter", name, parameter
    for name, buffer in bench.module.named_buffers():
        yield "buffer", name, buffer
    yield from inputs.owned()


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


MEMORY_EVENT = "[memory]"
CPU_DEVICE_TYPE = 0


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """What one step got from torch's allocator: its peak above the start, and how often, None on CUDA.

    There a replayed graph, whose pool is older, allocates nothing.
    """

    peak_bytes: int
    allocations: int | None


class TapeOfStep(msgspec.Struct, frozen=True, kw_only=True):
    mode: str
    effective: str
    held: Held
    step: Peak


def tape_of_step(bench: AnyBench, case: AnyCase) -> TapeOfStep:
    """Run two steps of `case`: one with saved-tensor hooks, one that records allocations."""
    saved = saved_during(case.call, Storages(owned_by(bench, case.inputs)))
    effective = MODES[case.mode].effect(bench.device.type).name
    return TapeOfStep(mode=case.mode, effective=effective, held=held(saved), step=peak_of(bench, case))


def peak_of(bench: AnyBench, case: AnyCase) -> Peak:
    if bench.device.type == "cuda":
        return _peak_on_cuda(case)
    with new_session(bench.device, memory=True) as session:
        result = case.call()
    events = chrome_events(session)
    del result
    return peak_of_events(events)


def peak_of_events(events: Iterable[dict[str, Any]]) -> Peak:
    """The peak of the running sum of the profiler's memory events on the host, in order of time."""
    changes = [
        event["args"]["Bytes"]
        for event in sorted(events, key=lambda event: event.get("ts", 0.0))
        if event["name"] == MEMORY_EVENT and event["args"]["Device Type"] == CPU_DEVICE_TYPE
    ]
    peak = max(accumulate(changes, initial=0))
    return Peak(peak_bytes=peak, allocations=sum(change > 0 for change in changes))


def _peak_on_cuda(case: AnyCase) -> Peak:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = case.call()
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated() - before
    del result
    return Peak(peak_bytes=most, allocations=None)
