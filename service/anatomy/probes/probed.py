"""What a probe puts its fault into: a copy of the served model or module that shares its weights."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from models.naming import ModuleError
from models.served import Served
from models.transformer import Transformer
from service.anatomy.common import StudyError, autocast_of, resolve_bucket
from service.anatomy.operators.calls import OperatorCall, record
from service.measure.cases import AnyBench, AnyCase, Bench, Case, ModuleBench, ModuleCase
from service.records import Phase
from service.step.buffers import DECODE_POSITION, Buffers, StepArguments, allocate
from service.step.callables import AnyStep
from service.step.module_inputs import ShapeInputs

Result = TypeVar("Result")

LAYERS = 2
"""Of our own models: few, so that a compilation takes seconds; two, so that one has no fault."""

MOST_SIZES = 10
"""Sizes in which a step is called beside the one that all are padded to, at most."""


class Sized(NamedTuple):
    """Inputs of one size. Each function sets them and returns a step's arguments: `padded` those in the size
    that all are padded to, `own` in their own.
    """

    padded: Callable[[], StepArguments]
    own: Callable[[], StepArguments]


class Sizes(NamedTuple):
    """Inputs that are padded to `batch_size`; `note` says what a reader is to know of them."""

    batch_size: int
    inputs: list[Sized]
    note: list[str]


class Probed(ABC):
    """`model` stays as it is: faults go into copies of it. `batch_size` is that of its calls, and `layers`
    the number of its layers, None for a user's module.
    """

    layers: int | None = None

    def __init__(self, bench: AnyBench, model: nn.Module, batch_size: int) -> None:
        self.bench = bench
        self.model = model
        self.batch_size = batch_size

    def copy(self) -> Any:  # noqa: ANN401 - a model like `model`
        return with_shared_weights(self.model)

    def step(self, model: nn.Module) -> AnyStep:
        """A call of `model` with a code object of its own, and so with compiled entries of its own."""
        return self.bench.form.forward(model, "probed")

    def served(self, step: Callable[..., Result], phase: Phase = "decode") -> Callable[[], Result]:
        """A call of `step` with the arguments of `phase`, in inference mode and the served precision."""
        arguments = self.arguments(phase)
        return self.within(lambda: step(*arguments))

    def within(self, call: Callable[[], Result]) -> Callable[[], Result]:
        """`call`, in inference mode and the served precision."""
        autocast = autocast_of(self.bench.device, self.bench.precision)

        def run() -> Result:
            with autocast:
                return call()

        return in_inference(run)

    def calls(self, run: Callable[[], object]) -> tuple[OperatorCall, ...]:
        """The operators of a call of `run`, with their operands."""
        return record(self.case(run), 1, operands=True)[0].calls

    @abstractmethod
    def phase(self, asked: Phase) -> Phase:
        """The phase of what is timed; `asked` is that of a language model's step."""

    @abstractmethod
    def parts(self, model: nn.Module) -> Sequence[nn.Module]:
        """The parts of a copy of `model` that a fault is put behind. Raises StudyError where it has none."""

    @abstractmethod
    def places(self) -> list[str]:
        """A note that names the first of the parts, where a reader cannot know which it is."""

    @abstractmethod
    def arguments(self, phase: Phase) -> StepArguments:
        """The arguments of a step of `phase`; sets the inputs for it."""

    @abstractmethod
    def case(self, run: Callable[[], object]) -> AnyCase:
        """`run` as a case in inference mode."""

    @abstractmethod
    def sizes(self, least: int) -> Sizes:
        """Inputs of more than `least` sizes. Raises StudyError where so many do not fit."""

    @abstractmethod
    def cast(self, weights: torch.dtype, lowest: torch.dtype) -> Callable[[], object]:
        """A call of a copy with weights in `weights`, whose products are to be in `lowest`."""


class ProbedModel(Probed):
    """A language model; one of ours is shortened to LAYERS layers, others keep theirs."""

    model: Served

    def __init__(self, bench: Bench, bucket: int) -> None:
        model = with_shared_weights(bench.model)
        if isinstance(model, Transformer):
            del model.blocks[LAYERS:]
            model.config = replace(model.config, layers=len(model.blocks))
        super().__init__(bench, model, bucket)
        self.layers = model.config.layers
        self._buffers = self._allocate(model, bench.precision.cache)

    def _allocate(self, model: Served, dtype: torch.dtype) -> Buffers:
        chunk = self.bench.settings.prefill_chunk
        return allocate(model, [self.batch_size], chunk, dtype, symbolic=False)[self.batch_size]

    def phase(self, asked: Phase) -> Phase:
        return asked

    def parts(self, model: nn.Module) -> Sequence[nn.Module]:
        for module in model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == self.layers:
                return list(module)
        raise StudyError(
            "unsupported_here", "this model has no ModuleList of its layers: use one of ours, such as tiny"
        )

    def places(self) -> list[str]:
        return []

    def arguments(self, phase: Phase) -> StepArguments:
        decode = min(DECODE_POSITION, self.model.config.context - 1)
        self._buffers.positions.fill_(decode if phase == "decode" else 0)
        return self._buffers.arguments(phase)

    def case(self, run: Callable[[], object]) -> Case:
        return Case("inference_mode", "decode", lambda *_: run(), self._buffers)

    def sizes(self, least: int) -> Sizes:
        """Prompts, all shorter than a chunk, which they are padded to."""
        self.arguments("prefill")
        chunk, positions, last, cache = self._buffers.arguments("prefill")
        longest = chunk.shape[1] - 1

        def padded(prompt: Tensor) -> StepArguments:
            length = prompt.shape[1]
            chunk[:, :length] = prompt
            chunk[:, length:] = 0
            last.fill_(length - 1)
            return chunk, positions, last, cache

        def own(prompt: Tensor) -> StepArguments:
            last.fill_(prompt.shape[1] - 1)
            return prompt, positions, last, cache

        lengths = range(longest, max(longest - MOST_SIZES, 1), -1)
        if len(lengths) <= least:
            raise StudyError(
                "unsupported_here",
                f"prompts of several lengths do not fit a prefill chunk of {chunk.shape[1]}: make it 8 or "
                "more",
            )
        prompts = [chunk[:, :length].clone() for length in lengths]
        inputs = [Sized(partial(padded, one), partial(own, one)) for one in prompts]
        return Sizes(self.batch_size, inputs, [])

    def cast(self, weights: torch.dtype, lowest: torch.dtype) -> Callable[[], object]:
        model = copy.deepcopy(self.model).to(weights)
        if isinstance(model, Transformer):
            model.rotary = model.rotary.to(lowest)  # so that keys come out in the dtype of the cache
        buffers = self._allocate(model, lowest)
        return lambda: model(*buffers.arguments("decode"))


WIDEST = 8
"""The batch that others of a module are padded to, where its own is smaller."""


class ProbedModule(Probed):
    """A user's module in the first of its sizes. Raises StudyError for one that cannot be copied."""

    def __init__(self, bench: ModuleBench, batch: int) -> None:
        self._inputs = bench.inputs[batch]
        self._user = bench.user
        try:
            model = with_shared_weights(bench.module)
        except Exception as error:  # whatever a stranger's module holds
            raise StudyError(
                "unsupported_here",
                f"a probe puts its fault into a copy, and copy.deepcopy of this module fails: {error}",
            ) from error
        super().__init__(bench, model, batch)

    def phase(self, asked: Phase) -> Phase:
        return "forward"

    def parts(self, model: nn.Module) -> Sequence[nn.Module]:
        return [model.get_submodule(name) for name in self._names()]

    def places(self) -> list[str]:
        return [
            f"The fault is behind `{self._names()[0]}`, the first part of the module that returns a tensor."
        ]

    def _names(self) -> list[str]:
        """Of the outermost parts that return a floating point tensor, as they return."""
        names: dict[str, None] = {}

        def note(name: str, part: object, inputs: object, output: Any) -> None:  # noqa: ANN401
            hidden = output[0] if type(output) is tuple and output else output
            if isinstance(hidden, Tensor) and hidden.is_floating_point() and hidden.dim() > 1:
                names[name] = None

        seen = self.copy()
        for name, part in seen.named_modules():
            if name:
                part.register_forward_hook(partial(note, name))
        self.served(self.step(seen))()
        found = list(names)
        while found:
            outermost = [one for one in found if not any(one.startswith(f"{other}.") for other in found)]
            inner = [one for one in found if one not in outermost]
            if len(outermost) > 1 or not inner:  # what wraps the whole module has nothing behind it
                return outermost
            found = inner
        raise StudyError(
            "unsupported_here",
            "this fault is put behind a part of the module that returns a floating point tensor of two or "
            "more dimensions, and none does",
        )

    def arguments(self, phase: Phase) -> StepArguments:
        return self._inputs.measured("forward")

    def case(self, run: Callable[[], object]) -> ModuleCase:
        return ModuleCase("inference_mode", "forward", lambda *_: run(), self._inputs)

    def sizes(self, least: int) -> Sizes:
        """Batches below the padded one, which is WIDEST or the module's own."""
        widest = max(self.batch_size, WIDEST)
        size = next(iter(self._user.sizes), None)
        try:
            whole, *others = (
                ShapeInputs(self._user, batch, size).arguments
                for batch in range(widest, max(widest - MOST_SIZES, 1), -1)
            )
        except ModuleError as error:
            raise StudyError("unsupported_here", str(error)) from error
        note = f"Padded, each call computes {widest} samples; in a size of its own, {widest - 1} or fewer."
        return Sizes(widest, [Sized(lambda: whole, partial(_itself, one)) for one in others], [note])

    def cast(self, weights: torch.dtype, lowest: torch.dtype) -> Callable[[], object]:
        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(weights) if tensor.is_floating_point() else tensor

        # Not `to`, which would drop the imaginary part of complex parameters.
        model = copy.deepcopy(self.model)._apply(cast)
        args, kwargs = tree_map_only(Tensor, cast, tuple(self._inputs.measured("forward")))

        def call() -> object:
            try:
                return model(*args, **kwargs)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise StudyError(
                    "unsupported_here", f"this module does not run in {lowest} everywhere: {reason}"
                ) from error

        return call


def _itself(arguments: StepArguments) -> StepArguments:
    return arguments


def make_probed(bench: AnyBench, batch_size: int | None, phase: Phase) -> Probed:
    """What `bench` serves, at `batch_size`; None: the smallest that is served, and of a module the largest in
    a probe of prefill, whose fault needs several rows. Raises StudyError.
    """
    if isinstance(bench, ModuleBench):
        chosen = (max if phase == "prefill" else min)(bench.inputs) if batch_size is None else batch_size
        return ProbedModule(bench, resolve_bucket(bench, chosen))
    assert isinstance(bench, Bench)
    return ProbedModel(bench, resolve_bucket(bench, 1 if batch_size is None else batch_size))


AnyModule = TypeVar("AnyModule", bound=nn.Module)


def with_shared_weights(model: AnyModule) -> AnyModule:
    """A deep copy that shares tensors: what is in the memo is not copied."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})


def in_inference(call: Callable[[], Result]) -> Callable[[], Result]:
    inference = torch.inference_mode()

    def run() -> Result:
        with inference:
            return call()

    return run
