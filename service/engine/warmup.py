"""Makes modes ready one callable at a time: compile, capture, check parity; then samples their steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Protocol

import msgspec
import torch
from torch import nn
from torch._dynamo.exc import Unsupported

from models.served import Served
from service.engine.compiler import (
    CacheBroken,
    CacheRetry,
    ColdStarts,
    load_compiler,
    not_one_graph,
    read_compile_counts,
    turned_off,
    unlike,
)
from service.engine.step_shares import StepShares
from service.modes import MODES, Effect, Mode
from service.records import Attention, Compilation, ModeStatus, Phase
from service.step.buffers import CALLS_TO_CAPTURE, Arguments, Buffers, prepare
from service.step.callables import Step
from service.step.device import free_memory, is_device_lost
from service.step.parity import ParityCheck, new_parity_check, wrong_attention
from service.step.process_state import resident_bytes
from service.step.profiling import profile_step
from service.step.trace import ProfiledStep

PHASES: tuple[Phase, ...] = ("decode", "prefill")

BuildStep = Callable[[Mode, nn.Module], Step]


@dataclass(slots=True)
class ConfiguredMode:
    """One configured mode: its row of the ladder, its status, and its callables by (phase, bucket), empty
    until warm-up has built them. `captures`: the graphs that calls have captured; the status has them once
    proved.
    """

    mode: Mode
    status: ModeStatus
    steps: dict[tuple[Phase, int], Step] = field(default_factory=dict)
    captures: int = 0


class Warmup:
    """The configured modes, made ready in the ladder's order; `reference_seconds` is what eager's took."""

    def __init__(
        self,
        modes: list[str],
        model: Served,
        buffers: dict[int, Buffers],
        announce: Callable[[ModeStatus], None],
        build: BuildStep,
        cold_starts: ColdStarts,
        shares: StepShares,
        cache_retry: CacheRetry | None,
    ) -> None:
        self._model = model
        self._buffers = buffers
        self._shares = shares
        self._capture = Capture(model, buffers, build, cold_starts)
        self._announce = announce
        self._build = build
        self._device = next(model.parameters()).device
        self.modes = {name: self._cold(MODES[name]) for name in modes}
        self._cache_retry = cache_retry
        self.attention: list[Attention] = []
        self.reference_seconds = 0.0
        self._proofs: list[tuple[ConfiguredMode, Callable[[], None]]] = []
        self._compiler_loaded = False
        # Starts another process that compiles into the same cache.
        self.start_elsewhere: Callable[[], CompiledElsewhere | None] = lambda: None

    def _cold(self, mode: Mode) -> ConfiguredMode:
        effect = mode.effect(self._device.type)
        status = ModeStatus(
            mode=mode.name, removes=mode.removes, state="cold", effective=effect.name, reason=effect.reason
        )
        self._announce(status)
        return ConfiguredMode(mode, status)

    def update(self, configured: ConfiguredMode, **changes: object) -> None:
        """Change a mode's status and send it to the front."""
        configured.status = msgspec.structs.replace(configured.status, **changes)
        self._announce(configured.status)

    def ready(self) -> dict[str, ConfiguredMode]:
        """The modes that serve now, in the ladder's order."""
        return {name: one for name, one in self.modes.items() if one.status.state == "ready"}

    def run(self) -> Iterator[None]:
        """Capture every mode and check its parity; yields so that ready modes can serve meanwhile.

        What all modes need once is done before the mode that needs it first, so that no mode's warm-up
        contains it. A mode that promises graph replay is not ready until `finish` has proved it.
        """
        began = perf_counter()
        parity_check = new_parity_check(self._model, self._buffers, self._build(MODES["eager"], self._model))
        self.attention = parity_check.attention
        self.reference_seconds = perf_counter() - began
        for configured in self.modes.values():
            self.update(configured, state="warming")
            yield from self._or_fail(configured, self._warm(configured, parity_check))

    def compile(self) -> Iterator[tuple[str, float | None]]:
        """Compile every callable of the configured modes, for the cache alone, in the order in which `run`
        needs them. Yields name and seconds of each, None where another process had put its code there
        meanwhile.
        """
        load_compiler(self._device)
        for name, configured in self.modes.items():
            for _ in self._capture.serving(configured):
                newest = configured.status.compilations[-1]
                seconds = newest.seconds if newest.cold else None
                yield callable_name(name, newest.phase, newest.batch), seconds

    @property
    def doing(self) -> str:
        warming = [name for name, one in self.modes.items() if one.status.state == "warming"]
        return f"warming up {warming[0]}" if warming else "warming up"

    def finish(self) -> Iterator[None]:
        """Prove graph replay, under the profiler."""
        for configured, proof in self._proofs:
            yield from self._or_fail(configured, self._prove(configured, proof))

    def sample(self) -> Iterator[None]:
        """Sample the steps of the ready modes, so that their first requests have a split."""
        ready = self.ready()
        for name, configured in ready.items():
            self._shares.add(name, configured.steps)
        for configured in ready.values():
            yield from self._or_fail(configured, self._shares.burst(configured.steps, self._buffers))
        self.announce_splits()

    def announce_splits(self) -> None:
        """Send what the newest samples say of the steps of each ready mode, where that is something new."""
        for name, configured in self.ready().items():
            splits = self._shares.splits(name)
            if splits != configured.status.splits:
                self.update(configured, splits=splits)

    def _or_fail(self, configured: ConfiguredMode, work: Iterator[None]) -> Iterator[None]:
        """Do `work`, which fails its mode, and no other, by what it raises."""
        try:
            yield from work
        except Unsupported as error:
            plain = [name for name, other in self.modes.items() if not self._compiles(other)]
            self._fail(configured, not_one_graph(error, plain))
        except CacheBroken:
            raise  # tried again by a new engine, as after the loss of the device
        except Exception as error:
            if is_device_lost(error):
                raise  # for every mode: the front starts a new engine
            self._fail(configured, f"{type(error).__name__}: {error}"[:2000])
            free_memory(error)

    def _compiles(self, configured: ConfiguredMode) -> bool:
        return self._capture.effect(configured).compiles

    def _fail(self, configured: ConfiguredMode, detail: str) -> None:
        configured.steps.clear()
        self.update(configured, state="failed", detail=detail)

    def _warm(self, configured: ConfiguredMode, parity_check: ParityCheck) -> Iterator[None]:
        """Capture every callable that serves a mode, then check its parity."""
        name, effect = configured.mode.name, self._capture.effect(configured)
        if effect.compile is not None and (off := turned_off()):
            self._fail(configured, off)
            return
        retry = self._cache_retry if self._compiles(configured) else None
        if self._compiles(configured) and not self._compiler_loaded:
            self._capture.elsewhere = self.start_elsewhere()
            loading = self._load_compiler()
            yield from (retry.watched(name, loading) if retry else loading)
        before, resident = read_compile_counts(), resident_bytes()
        capture = self._capture.serving(configured)
        seconds = yield from (retry.watched(name, capture) if retry else capture)
        seen = before.increase()
        began = perf_counter()
        verdict = parity_check.run(configured.steps)
        status, graphs = configured.status, before.increase()
        compilations = status.compilations
        configured.status = msgspec.structs.replace(
            status,
            parity=verdict,
            warmup_seconds=seconds + perf_counter() - began,
            cache=("cold" if any(one.cold for one in compilations) else "warm") if compilations else None,
            resident_bytes=max(0, resident_bytes() - resident),
            graph_breaks=graphs.graph_breaks,
            recompiles=max(0, graphs.graphs - len(compilations)),
        )
        if unlike_row := unlike(effect, len(configured.steps), seen):
            self._fail(configured, unlike_row)
            return
        if retry is not None:
            retry.judged(name, verdict.passed)
        if not verdict.passed:
            self._fail(configured, "out of parity with eager: see `parity`")
        elif wrong := wrong_attention(self.attention):
            self._fail(configured, wrong)
        elif effect.graph_replay:
            proof = partial(verify_graph_replay, configured, self._buffers, self._device, seen.graph_skips)
            self._proofs.append((configured, proof))
        else:
            self.update(configured, state="ready")

    def _load_compiler(self) -> Generator[None, None, None]:
        """Where this fails, as on a full disk, it fails the mode that it was for, and not the engine."""
        load_compiler(self._device)
        self._compiler_loaded = True
        yield

    def _prove(self, configured: ConfiguredMode, proof: Callable[[], None]) -> Iterator[None]:
        """A mode whose graphs were skipped has captured none."""
        proof()
        replays = configured.status.effective == self._capture.effect(configured).name
        self.update(configured, state="ready", graph_captures=configured.captures if replays else 0)
        yield


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
    """Builds and captures the callables of one mode after another, or waits for what `elsewhere` compiles."""

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
        return configured.mode.effect(self._device_type)

    def serving(self, configured: ConfiguredMode) -> Generator[None, None, float]:
        """Capture every callable that serves a mode; returns the seconds that took."""
        effect = self.effect(configured)
        seconds = 0.0
        for one in self._callables(configured):
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
        if self.elsewhere is None:
            return None
        mode = configured.mode.name
        return (yield from self.elsewhere.compiled(mode, callable_name(mode, one.phase, one.bucket)))

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


def verify_graph_replay(
    configured: ConfiguredMode, buffers: dict[int, Buffers], device: torch.device, skips: int
) -> None:
    """Change the status of a mode that promises CUDA-graph replay where it does not replay, or shows neither.

    `skips` is how often torch itself counted, while the mode was captured, that it gave up graphs. What it
    did not count must show in a trace: one graph launch per step of either phase, at every bucket. A trace
    without launches and kernels says nothing: it is taken twice, and then the replay is called not proved.
    """
    if not configured.mode.effect(device.type).graph_replay:
        return
    if skips:
        _skipped(configured, f"torch gave them up for {skips} compiled callables")
        return
    for bucket, own in buffers.items():
        for phase in PHASES:
            prepare(own)
            seen = _profiled(configured.steps[phase, bucket], own, phase)
            where = f"per {phase} step at batch {bucket}"
            if not _recorded(seen):
                # The mode keeps its name: torch counted no skip, and nothing contradicts it.
                reason = f"graph replay is not proved {where}: {seen.unknown}"
                configured.status = msgspec.structs.replace(configured.status, reason=reason)
            elif seen.graph_launches != 1:
                _skipped(configured, f"{seen.graph_launches} graph launches {where}")
                return


def _profiled(step: Step, buffers: Buffers, phase: Phase) -> ProfiledStep:
    seen = profile_step(step, buffers, phase)
    return seen if _recorded(seen) else profile_step(step, buffers, phase)


def _recorded(seen: ProfiledStep) -> bool:
    """Whether the trace shows anything of a step's way to the device."""
    return bool(seen.launches) or seen.kernels is not None


def _skipped(configured: ConfiguredMode, detail: str) -> None:
    configured.status = msgspec.structs.replace(
        configured.status,
        effective=configured.mode.cuda.without_replay,
        reason=f"CUDA graphs were skipped: {detail}",
    )
