"""Calls each callable of a mode until it is in its final form, and records what compiling it cost."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import msgspec
from torch import nn

from models.served import Served
from service.engine.cold_starts import ColdStarts
from service.engine.compiler import CompileCounts, read_compile_counts
from service.engine.configured_mode import ConfiguredMode
from service.protocol.messages import Phase
from service.protocol.modes import Effect, Mode
from service.protocol.status import Compilation
from service.step.buffers import Arguments, Buffers, prepare
from service.step.callables import Step
from service.step.untimed import CALLS_TO_CAPTURE

PHASES: tuple[Phase, ...] = ("decode", "prefill")

BuildStep = Callable[[Mode, nn.Module], Step]


def callable_name(mode: str, phase: Phase, bucket: int) -> str:
    """Names a callable among all that are compiled for one model and set of sizes."""
    return f"{mode} {phase} {bucket}"


@dataclass(frozen=True, slots=True)
class _Callable:
    """A step to be warmed, in each of `shapes`, largest first."""

    step: Step
    shapes: list[Arguments]
    phase: Phase
    bucket: int


class CompiledElsewhere(Protocol):
    """Another process that compiles into the same cache."""

    def compiled(self, mode: str, name: str) -> Generator[None, None, float | None]:
        """What compiling `name` took there, once it has; None: it is to be compiled here."""
        ...


class Capture:
    """Builds and captures the callables of one mode after another; yields between two callables.

    What `elsewhere` compiles is waited for, and loaded from the cache.
    """

    def __init__(
        self,
        model: Served,
        buffers: Mapping[int, Buffers],
        build: BuildStep,
        cold_starts: ColdStarts,
    ) -> None:
        self._model = model
        self._buffers = buffers
        self._build = build
        self._cold_starts = cold_starts
        self.elsewhere: CompiledElsewhere | None = None
        self._device_type = next(model.parameters()).device.type

    def effect(self, configured: ConfiguredMode) -> Effect:
        """What a mode does on this device."""
        return configured.mode.effect(self._device_type)

    def serving(self, configured: ConfiguredMode) -> Generator[None, None, float]:
        """Capture every callable that serves a mode; returns the seconds that took."""
        return (yield from self._capture(configured, self._callables(configured)))

    def count_graphs(self, configured: ConfiguredMode, before: CompileCounts, compiled_before: int) -> None:
        """Add the graph breaks and recompilations since `before` to a mode's status, without sending it."""
        status, increase = configured.status, before.increase()
        compiled = len(status.compile_seconds) - compiled_before
        configured.status = msgspec.structs.replace(
            status,
            graph_breaks=status.graph_breaks + increase.graph_breaks,
            recompiles=status.recompiles + max(0, increase.graphs - compiled),
        )

    def _capture(
        self, configured: ConfiguredMode, callables: Iterator[_Callable]
    ) -> Generator[None, None, float]:
        effect = self.effect(configured)
        seconds = 0.0
        for one in callables:
            started = perf_counter()
            there = (yield from self._compiled_elsewhere(configured, one)) if effect.compiles else None
            misses = read_compile_counts()
            called = perf_counter()
            one.step(*one.shapes[0])
            first = perf_counter() - called
            if effect.graph_replay:
                for arguments in one.shapes:
                    for _ in range(CALLS_TO_CAPTURE - 1):
                        one.step(*arguments)
                configured.captures += len(one.shapes)
            elif self._device_type == "cuda":
                # Attention is planned, and kernels are loaded, at the first call in each shape.
                for arguments in one.shapes[1:]:
                    one.step(*arguments)
            else:
                # Its first call is final; another shape shows that one compilation serves all of them.
                one.step(*one.shapes[-1])
            if effect.compiles:
                missed = misses.increase().cache_misses > 0
                # Compiled elsewhere and missed here all the same: then what counts is what it took here.
                cold_seconds = first if missed else there
                self._count(configured, one, first if cold_seconds is None else cold_seconds, cold_seconds)
            seconds += perf_counter() - started
            yield
        return seconds

    def _compiled_elsewhere(
        self, configured: ConfiguredMode, one: _Callable
    ) -> Generator[None, None, float | None]:
        """The seconds that it took there; None where it did not."""
        if self.elsewhere is None:
            return None
        mode = configured.mode.name
        name = callable_name(mode, one.phase, one.bucket)
        return (yield from self.elsewhere.compiled(mode, name))

    def _count(
        self, configured: ConfiguredMode, one: _Callable, seconds: float, cold_seconds: float | None
    ) -> None:
        """Record the first call of a compiled callable; `cold_seconds` None: its code was in the cache."""
        status = configured.status
        compilation = Compilation(
            phase=one.phase,
            batch=one.bucket,
            seconds=seconds,
            cold=cold_seconds is not None,
            cold_seconds=self._cold_starts.recorded(
                callable_name(configured.mode.name, one.phase, one.bucket), cold_seconds
            ),
        )
        configured.status = msgspec.structs.replace(
            status,
            compilations=[*status.compilations, compilation],
            compile_seconds=[*status.compile_seconds, seconds],
        )

    def _callables(self, configured: ConfiguredMode) -> Iterator[_Callable]:
        """Every callable that serves a mode, largest bucket first so that graph pools are sized once."""
        for bucket in sorted(self._buffers, reverse=True):
            buffers = self._buffers[bucket]
            for phase in PHASES:
                step = self._build(configured.mode, self._model)
                configured.steps[phase, bucket] = step
                prepare(buffers)
                yield _Callable(step, list(buffers.shapes(phase)), phase, bucket)
