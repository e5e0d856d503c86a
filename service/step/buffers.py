"""The static inputs of a step, allocated once per batch bucket, and those of a measured step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from models.served import Cache, Served
from service.records import Phase

Arguments = tuple[Tensor, Tensor, Tensor, Cache]
"""What a step is called with: tokens, positions, last, cache; shapes as in `Served.forward`."""

ModuleArguments = tuple[tuple[Any, ...], dict[str, Any]]
"""What a step of a module is called with: the positional arguments of its forward, and those by name."""


class SizedArguments(ModuleArguments):
    """Those of one size; `number` is its place among the sizes of the module, from 0."""

    number = 0


StepArguments = Arguments | ModuleArguments

InputKind = Literal["cache", "input"]


class StepInputs(Protocol):
    """The static inputs of a step at one batch size: every mode is called on the same ones."""

    @property
    def apart(self) -> int:
        """How many of the first `shapes` are each compiled for; they serve the others too."""

    def prepare(self) -> object:
        """Set what a first call reads."""

    def shapes(self, phase: Phase) -> Iterator[StepArguments]:
        """The arguments of every shape in which a step of `phase` is called, largest first."""

    def measured(self, phase: Phase) -> StepArguments:
        """Set the inputs of a measured step; returns its arguments."""

    def varied(self) -> Iterator[StepArguments]:
        """The arguments in the same shapes with other values, as far as these matter to what is run."""

    def owned(self) -> Iterator[tuple[InputKind, str, Tensor]]:
        """Every tensor among them, with its name."""


SHORTEST_CHUNK = 16
"""Tokens of the shortest prefill step; the lengths go on in powers of two up to the prefill chunk."""

SHORTEST_REACH = 64
"""Positions of the cache that attention reads at least; they go on in powers of two up to the context."""


def powers(least: int, most: int) -> list[int]:
    """`least` and its doubles below `most`, then `most`; `most` alone where it is not above `least`."""
    values = [least << power for power in range(most.bit_length()) if least << power < most]
    return [*values, most]


@dataclass(frozen=True, slots=True)
class Buffers:
    """The static inputs of one batch bucket; every mode reads and writes the same ones.

    `chunks` has by length the prefill tokens, int64 [bucket, length]; `token` is int64 [bucket, 1], of which
    `token_row` is a view [bucket]; `positions` and `last` are int64 [bucket]; `one` is an int64 1, [1].
    `caches` has by reach the first `reach` positions of `bucket` rows of the shared cache: attention reads
    what it is given. Both by ascending size.
    """

    bucket: int
    chunks: Mapping[int, Tensor]
    token: Tensor
    token_row: Tensor
    positions: Tensor
    last: Tensor
    one: Tensor
    caches: Mapping[int, Cache]

    @property
    def apart(self) -> int:
        """1: sizes are symbolic."""
        return 1

    @property
    def cache(self) -> Cache:
        return self.caches[max(self.caches)]

    @property
    def chunk_length(self) -> int:
        return max(self.chunks)

    def padded(self, tokens: int) -> int:
        """The length of the shortest prefill step that takes `tokens`. Raises StopIteration for too many."""
        return next(length for length in self.chunks if length >= tokens)

    def reach(self, used: int) -> int:
        """The smallest reach that includes `used` positions. Raises StopIteration beyond the context."""
        return next(reach for reach in self.caches if reach >= used)

    def arguments(self, phase: Phase, length: int | None = None, reach: int | None = None) -> Arguments:
        """A step's arguments; by default the longest chunk, and as little of the cache as holds it."""
        length = self.chunk_length if length is None else length
        tokens = self.token if phase == "decode" else self.chunks[length]
        if reach is None:
            reach = self.reach(1 if phase == "decode" else length)
        return tokens, self.positions, self.last, self.caches[reach]

    def prepare(self, position: int = 0) -> Tensor:
        """Set them for a single decode step at `position`; returns its tokens, int64 [bucket, 1]."""
        self.positions.fill_(position)
        self.last.zero_()
        return self.token

    def measured(self, phase: Phase) -> Arguments:
        """Set the positions of a measured step; returns its arguments."""
        set_positions(self, phase)
        return measured_arguments(self, phase)

    def varied(self) -> Iterator[Arguments]:
        """None: no value decides what is run."""
        return iter(())

    def owned(self) -> Iterator[tuple[InputKind, str, Tensor]]:
        for layer, (keys, values) in enumerate(self.cache):
            yield "cache", f"layer {layer} keys", keys
            yield "cache", f"layer {layer} values", values
        for length, chunk in self.chunks.items():
            yield "input", f"chunk of {length}", chunk
        for name in ("token", "positions", "last", "one"):
            yield "input", name, getattr(self, name)

    def with_own_positions(self) -> Buffers:
        """These buffers with `positions` and `last` of their own, zeros, which no other step moves."""
        positions, last = (static(torch.zeros_like(self.positions)) for _ in range(2))
        return replace(self, positions=positions, last=last)

    def shapes(self, phase: Phase) -> Iterator[Arguments]:
        """The arguments of every shape in which a step of `phase` is called, largest first."""
        for length in [1] if phase == "decode" else sorted(self.chunks, reverse=True):
            for reach in sorted(self.caches, reverse=True):
                if reach >= length:
                    yield self.arguments(phase, length, reach)


def allocate(
    model: Served,
    buckets: list[int],
    prefill_chunk: int,
    cache_dtype: torch.dtype | None = None,
    symbolic: bool = True,
) -> dict[int, Buffers]:
    """Buffers for every bucket over one cache, with static addresses so that graphs need not copy them.

    The cache has the dtype of the weights unless `cache_dtype` is given. `symbolic` False: no size is marked
    as dynamic, for a step that is called in one shape only.
    """
    parameter = next(model.parameters())
    cache = model.new_cache(max(buckets), cache_dtype or parameter.dtype)
    reaches = powers(SHORTEST_REACH, model.config.context)
    lengths = powers(SHORTEST_CHUNK, prefill_chunk)

    def integers(*shape: int) -> Tensor:
        return static(torch.zeros(shape, dtype=torch.int64, device=parameter.device))

    def sized(tensor: Tensor, sizes: list[int]) -> Tensor:
        return _sized(tensor, sizes) if symbolic else static(tensor)

    def part(bucket: int, reach: int) -> Cache:
        return tuple(
            (sized(k[:bucket, :reach], reaches), sized(v[:bucket, :reach], reaches)) for k, v in cache
        )

    def buffers(bucket: int) -> Buffers:
        token = integers(bucket, 1)
        return Buffers(
            bucket=bucket,
            chunks={length: sized(integers(bucket, length), lengths) for length in lengths},
            token=token,
            token_row=token.view(bucket),
            positions=integers(bucket),
            last=integers(bucket),
            one=integers(1).add_(1),
            caches={reach: part(bucket, reach) for reach in reaches},
        )

    return {bucket: buffers(bucket) for bucket in buckets}


def static(tensor: Tensor) -> Tensor:
    # A marked input may be mutated inside a CUDA graph and is not copied into it at every replay. On a CPU a
    # compilation that freezes weights would take marked inputs for constants as well.
    if tensor.is_cuda:
        torch._dynamo.mark_static_address(tensor)
    return tensor


def _sized(tensor: Tensor, sizes: list[int]) -> Tensor:
    """`tensor` at a static address, its second dimension symbolic where it has several `sizes`."""
    if len(sizes) > 1 and tensor.shape[1] > 1:
        # On CUDA Inductor guards, before attention, that strides are multiples of 8. Powers of two have them,
        # but no range of sizes does, and an enforced mark would refuse the guard.
        make_symbolic(tensor, sizes, enforced=not tensor.is_cuda)
    return static(tensor)


def copy_row(cache: Cache, source: int, target: int, positions: int) -> None:
    """Copy the first `positions` of row `source` of `cache` to row `target`, in every layer."""
    for keys, values in cache:
        for part in (keys, values):
            part[target, :positions].copy_(part[source, :positions])


SIZE = "_launchbound_symbolic_size"
"""A tensor's attribute with its `SymbolicSize`: torch itself keeps the range of enforced marks only."""


@dataclass(frozen=True, slots=True)
class SymbolicSize:
    """A tensor's second dimension has `least` to `most` elements; `enforced`: any number in between."""

    least: int
    most: int
    enforced: bool


def make_symbolic(tensor: Tensor, sizes: list[int], enforced: bool) -> None:
    """Mark the second dimension of `tensor` as dynamic among `sizes`: one compiled callable serves all.

    `enforced`: compiling raises ConstraintViolationError unless the callable serves each length in the range.
    Else it is guarded by what it needs, and compiled again for sizes that fail.
    """
    size = SymbolicSize(max(2, min(sizes)), max(sizes), enforced)
    if enforced:
        torch._dynamo.mark_dynamic(tensor, 1, min=size.least, max=size.most)
    else:
        torch._dynamo.maybe_mark_dynamic(tensor, 1)
    setattr(tensor, SIZE, size)


def symbolic_size(tensor: Tensor) -> SymbolicSize | None:
    """What `make_symbolic` has marked the second dimension of `tensor` as; None: it does not change."""
    size: SymbolicSize | None = getattr(tensor, SIZE, None)
    return size


CALLS_TO_CAPTURE = 4
"""Calls after which every callable is in its final form: compile, CUDA-graph warm-up, capture, replay."""

LEAD_STEPS, LEAD_STEPS_OF_PREFILL = 10, 2
"""Before timed steps in a row: at batch 1 about ten pass until weights and code lie in the caches."""


def lead_steps(phase: Phase) -> int:
    """Before timed or sampled steps of `phase`, at least."""
    return LEAD_STEPS_OF_PREFILL if phase == "prefill" else LEAD_STEPS


LEAD_STEPS_OF_DISPATCH = 4
"""Before a timed call of a decode step alone: after other code the first reads up to 1.6 times too long."""

LEAD_STEPS_UNDER_PROFILER = 2
"""Before recorded steps: the profiler's first mark takes milliseconds."""

DECODE_POSITION = 60
"""Cache position of a measured decode step: attention then reads the least part of the cache."""

PREFILL_TOKENS = 32
"""Tokens per row of a measured prefill step: a middle length; fewer where a chunk is shorter."""

LEAD_SECONDS = 0.015
"""Of steps before sampled ones, at least: short prefill steps take more than LEAD_STEPS_OF_PREFILL."""

TIMED_STEPS = 5
"""Decode steps whose median is a step's time, at least: on a slow machine few fit into a time."""


def measured_arguments(buffers: Buffers, phase: Phase) -> Arguments:
    """Those of a decode step, or of a prefill of PREFILL_TOKENS per row, fewer where a chunk is shorter."""
    if phase == "decode":
        return buffers.arguments("decode")
    length = buffers.padded(min(PREFILL_TOKENS, buffers.chunk_length))
    return buffers.arguments("prefill", length)


def set_positions(buffers: Buffers, phase: Phase) -> None:
    """Write the positions of a measured step: phases share them, and decode's are out of prefill's reach."""
    buffers.last.zero_()
    if phase == "decode":
        buffers.positions.fill_(min(DECODE_POSITION, max(buffers.caches) - 1))
    else:
        buffers.positions.zero_()
