"""Makes modes ready one callable at a time: compile, capture, check parity; then samples their steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Protocol

import msgspec
from torch._dynamo.exc import Unsupported

from service.engine.compiler import (
    CacheBroken,
    CacheRetry,
    ColdStarts,
    CompileCounts,
    GraphBreaks,
    load_compiler,
    not_one_graph,
    read_compile_counts,
    turned_off,
    unlike,
)
from service.engine.start_times import START
from service.engine.step_shares import StepShares
from service.engine.workload import Check, ServedWorkload
from service.modes import MODES, Effect, Mode
from service.records import Attention, Compilation, ModeStatus, Phase
from service.step.buffers import CALLS_TO_CAPTURE, StepArguments, StepInputs
from service.step.callables import BREAKS, AnyStep
from service.step.device import free_memory, is_device_lost
from service.step.graphs import counted_replays
from service.step.process_state import resident_bytes


class Elsewhere(Protocol):
    """Another process that compiles into the same cache."""

    def compiled(self, name: str) -> Generator[None, None, float | None]:
        """Wait for a callable, by name, where it is compiled there: its seconds; None: compile it here."""

    def close(self) -> None: ...


@dataclass(slots=True)
class ConfiguredMode:
    """A configured mode: its row of the ladder, its status, and its callables by (phase, bucket) once built.

    `captures`: graphs that calls have captured; the status has them once proved. `first_graphs`: compiled at
    the first call of each callable; more are recompilations. `breaks`: where it breaks the graph.
    """

    mode: Mode
    status: ModeStatus
    steps: dict[tuple[Phase, int], AnyStep] = field(default_factory=dict)
    captures: int = 0
    first_graphs: int = 0
    breaks: GraphBreaks | None = None


class Warmup:
    """The configured modes, made ready in the order of `modes`; `reference_seconds` is what eager's took."""

    def __init__(
        self,
        modes: list[str],
        workload: ServedWorkload,
        announce: Callable[[ModeStatus], None],
        cold_starts: ColdStarts,
        shares: StepShares,
        cache_retry: CacheRetry | None,
    ) -> None:
        self._workload = workload
        self._inputs = workload.inputs
        self._shares = shares
        self._announce = announce
        self._cold_starts = cold_starts
        self._device = workload.loaded.device
        self.modes = {name: self._cold(MODES[name]) for name in modes}
        self._cache_retry = cache_retry
        self.attention: Sequence[Attention] = ()
        self.reference_seconds = 0.0
        self._compiler_loaded = False
        self._given_up: dict[str, str] = {}
        self.start_elsewhere: Callable[[], Elsewhere | None] = lambda: None
        self._elsewhere: Elsewhere | None = None

    def _cold(self, mode: Mode) -> ConfiguredMode:
        effect = mode.effect(self._device.type)
        status = ModeStatus(
            mode=mode.name, removes=mode.removes, state="cold", effective=effect.name, reason=effect.reason
        )
        self._announce(status)
        return ConfiguredMode(mode, status)

    def update(self, configured: ConfiguredMode, **changes: object) -> None:
        configured.status = msgspec.structs.replace(configured.status, **changes)
        self._announce(configured.status)

    def ready(self) -> dict[str, ConfiguredMode]:
        return {name: one for name, one in self.modes.items() if one.status.state == "ready"}

    def run(self) -> Iterator[None]:
        """Capture every mode and check its parity; yields so that ready modes can serve meanwhile."""
        began = perf_counter()
        with START.phase("parity"):
            parity = self._workload.check(self._workload.build(MODES["eager"]))
        self.attention = parity.attention
        self.reference_seconds = perf_counter() - began
        try:
            for configured in self.modes.values():
                self.update(configured, state="warming")
                yield from self._or_fail(configured, self._warm(configured, parity))
        finally:
            if self._elsewhere is not None:
                self._elsewhere.close()

    def compile(self, claim: Callable[[str], bool]) -> Iterator[tuple[str, float | None]]:
        """Compile for the cache alone each callable that `claim` gives us by its name, the last one first;
        yields its name and the seconds that took, None where it was there.
        """
        load_compiler(self._device)
        for configured in reversed(self.modes.values()):
            effect = self.effect(configured)
            for phase, bucket in reversed(self._names()):
                name = callable_name(configured.mode.name, phase, bucket)
                if claim(name):
                    misses = read_compile_counts()
                    step = self._workload.build(configured.mode)
                    try:
                        seconds, _ = self._first_calls(step, phase, bucket)
                        self._later_calls(effect, step, phase, bucket)
                    except BREAKS:
                        yield name, None  # the engine says so of the mode, or compiles it with breaks
                        continue
                    yield name, seconds if misses.increase().cache_misses > 0 else None

    @property
    def doing(self) -> str:
        warming = [name for name, one in self.modes.items() if one.status.state == "warming"]
        return f"warming up {warming[0]}" if warming else "warming up"

    def sample(self) -> Iterator[None]:
        """Sample the steps of the ready modes, so that their first requests have a split."""
        ready = self.ready()
        for name, configured in ready.items():
            self._shares.add(name, configured.steps)
        for configured in ready.values():
            yield from self._or_fail(configured, self._shares.burst(configured.steps, self._inputs))
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
            plain = [name for name, other in self.modes.items() if not self.effect(other).compiles]
            self._fail(configured, not_one_graph(error, plain))
        except CacheBroken:
            raise  # tried again by a new engine, as after the loss of the device
        except Exception as error:
            if is_device_lost(error):
                raise  # for every mode: the front starts a new engine
            self._fail(configured, self._workload.reason(error))
            free_memory(error)

    def _fail(self, configured: ConfiguredMode, detail: str) -> None:
        configured.steps.clear()
        self.update(configured, state="failed", detail=detail)

    def _warm(self, configured: ConfiguredMode, parity: Check) -> Iterator[None]:
        """Capture every callable that serves a mode, then check its parity."""
        name, effect = configured.mode.name, self.effect(configured)
        if effect.compile is not None and (off := turned_off()):
            self._fail(configured, off)
            return
        retry = self._cache_retry if effect.compiles else None
        if effect.compiles and not self._compiler_loaded:
            self._elsewhere = self.start_elsewhere()
            loading = self._load_compiler()
            yield from (retry.watched(name, loading) if retry else loading)
        resident = resident_bytes()
        capture = self.serving(configured)
        seconds, before = yield from (retry.watched(name, capture) if retry else capture)
        effect, seen = self.effect(configured), before.increase()
        began = perf_counter()
        with START.phase("parity"):
            verdict = parity.run(configured.steps)
        graphs, compilations = before.increase(), configured.status.compilations
        configured.status = msgspec.structs.replace(
            configured.status,
            parity=verdict,
            warmup_seconds=seconds + perf_counter() - began,
            cache=("cold" if any(one.cold for one in compilations) else "warm") if compilations else None,
            resident_bytes=max(0, resident_bytes() - resident),
            graph_breaks=configured.breaks.count if configured.breaks else graphs.graph_breaks,
            recompiles=max(0, graphs.graphs - configured.first_graphs),
        )
        if unlike_row := unlike(effect, len(configured.steps), seen, configured.breaks):
            self._fail(configured, unlike_row)
            return
        if retry is not None:
            retry.judged(name, verdict.passed)
        if wrong := parity.wrong(verdict):
            self._fail(configured, wrong)
        else:
            if effect.graph_replay:
                verify_graph_replay(configured, self._inputs, seen.graph_skips)
            if configured.breaks is not None:
                self._tell_breaks(configured, configured.breaks)
            replays = effect.graph_replay and configured.status.effective == effect.name
            self.update(configured, state="ready", graph_captures=configured.captures if replays else 0)

    def effect(self, configured: ConfiguredMode) -> Effect:
        return configured.mode.effect(self._device.type)

    def serving(self, configured: ConfiguredMode) -> Generator[None, None, tuple[float, CompileCounts]]:
        """Capture every callable that serves a mode, with breaks where it may have some and cannot be one
        graph; returns the seconds that took, and the compiler's counts from before.
        """
        before = read_compile_counts()
        try:
            return (yield from self._capture(configured)), before
        except BREAKS:
            if not (self._workload.may_break and self.effect(configured).is_one_graph):
                raise
        configured.mode = configured.mode.with_breaks()
        configured.steps.clear()
        configured.first_graphs = 0
        configured.status = msgspec.structs.replace(configured.status, compilations=[], compile_seconds=[])
        before = read_compile_counts()
        configured.breaks = GraphBreaks(self._given_up)
        return (yield from self._capture(configured)), before

    def _tell_breaks(self, configured: ConfiguredMode, breaks: GraphBreaks) -> None:
        reasons = [configured.status.reason, str(breaks)]
        reason = "; ".join(one for one in reasons if one)
        configured.status = msgspec.structs.replace(configured.status, reason=reason)

    def _capture(self, configured: ConfiguredMode) -> Generator[None, None, float]:
        """Capture every callable that serves a mode; returns the seconds that took."""
        mode, effect = configured.mode.name, self.effect(configured)
        seconds = 0.0
        for phase, bucket, step in self._callables(configured):
            started = perf_counter()
            name = callable_name(mode, phase, bucket)
            there: float | None = None
            if effect.compiles and self._elsewhere is not None:
                there = yield from self._elsewhere.compiled(name)
            misses = read_compile_counts()
            if configured.breaks is not None:
                configured.breaks.begin()
            with START.phase("calls"):
                first, graphs = self._first_calls(step, phase, bucket)
            configured.first_graphs += graphs
            if configured.breaks is not None:
                configured.breaks.end(graphs)
            with START.phase("calls"):
                shapes = self._later_calls(effect, step, phase, bucket)
            configured.captures += shapes if effect.graph_replay else 0
            if effect.compiles:
                # Compiled elsewhere and missed here all the same: then what counts is what it took here.
                START.beside_seconds += there or 0.0
                cold_seconds = first if misses.increase().cache_misses > 0 else there
                compilation = Compilation(
                    phase=phase,
                    batch=bucket,
                    seconds=first if cold_seconds is None else cold_seconds,
                    cold=cold_seconds is not None,
                    cold_seconds=self._cold_starts.recorded(name, cold_seconds),
                )
                status = configured.status
                configured.status = msgspec.structs.replace(
                    status,
                    compilations=[*status.compilations, compilation],
                    compile_seconds=[*status.compile_seconds, compilation.seconds],
                )
            if configured.breaks is not None:
                configured.first_graphs += self._other_paths(step, bucket)
            seconds += perf_counter() - started
            yield
        return seconds

    def _first_calls(self, step: AnyStep, phase: Phase, bucket: int) -> tuple[float, int]:
        """Call `step` in its largest shape, or in each that is compiled for: the seconds that took, and the
        graphs of the first. Those of others are recompilations.
        """
        own = self._inputs[bucket]
        own.prepare()
        first, *others = islice(own.shapes(phase), own.apart)
        before = read_compile_counts()
        began = perf_counter()
        step(*first)
        graphs = before.increase().graphs
        for arguments in others:
            step(*arguments)
        return perf_counter() - began, graphs

    def _later_calls(self, effect: Effect, step: AnyStep, phase: Phase, bucket: int) -> int:
        """Call `step`, after its first calls, in its shapes until it is final; returns how many there are."""
        shapes: list[StepArguments] = list(self._inputs[bucket].shapes(phase))
        if effect.graph_replay:
            for arguments in shapes:
                for _ in range(CALLS_TO_CAPTURE - 1):
                    step(*arguments)
        elif self._device.type == "cuda":
            # Attention is planned, and kernels are loaded, at the first call in each shape.
            for arguments in shapes[1:]:
                step(*arguments)
        else:
            # Its first calls are final; another shape shows that one compilation serves all of them.
            step(*shapes[-1])
        return len(shapes)

    def _other_paths(self, step: AnyStep, bucket: int) -> int:
        """Call a `step` that breaks the graph on other inputs: between its graphs Python may decide by values
        what comes next, and later nothing can be compiled. Returns how many graphs that took.
        """
        before = read_compile_counts()
        for arguments in self._inputs[bucket].varied():
            step(*arguments)
        return before.increase().graphs

    def _callables(self, configured: ConfiguredMode) -> Iterator[tuple[Phase, int, AnyStep]]:
        """Every callable that serves a mode."""
        for phase, bucket in self._names():
            step = self._workload.build(configured.mode)
            configured.steps[phase, bucket] = step
            yield phase, bucket, step

    def _names(self) -> list[tuple[Phase, int]]:
        return callables_of(self._workload.kind.phases, self._inputs)

    def _load_compiler(self) -> Generator[None, None, None]:
        """Where this fails, as on a full disk, it fails the mode that it was for, and not the engine."""
        load_compiler(self._device)
        self._compiler_loaded = True
        yield


def callables_of(phases: Sequence[Phase], buckets: Iterable[int]) -> list[tuple[Phase, int]]:
    """The callables of a mode, the largest bucket first so that graph pools are sized once."""
    return [(phase, bucket) for bucket in sorted(buckets, reverse=True) for phase in reversed(phases)]


def callable_name(mode: str, phase: Phase, bucket: int) -> str:
    """Names a callable among all that are compiled for one model and set of sizes."""
    return f"{mode} {phase} {bucket}"


def verify_graph_replay(configured: ConfiguredMode, inputs: Mapping[int, StepInputs], skips: int) -> None:
    """Change the status of a mode that promises one replayed CUDA graph per step and does something else; of
    one that breaks the graph, several.

    `skips`: how often torch counted that it gave up graphs. What the service captures raises where it cannot
    be replayed; of what Inductor captures one step of each shape is called, and its replays are counted.
    """
    if configured.mode.cuda.captured:
        return
    if skips:
        _skipped(configured, f"torch gave them up for {skips} compiled callables")
        return
    for (phase, bucket), step in configured.steps.items():
        inputs[bucket].prepare()
        for arguments in inputs[bucket].shapes(phase):
            with counted_replays() as replays:
                step(*arguments)
            if len(replays) != 1 and not (replays and configured.breaks is not None):
                _skipped(configured, f"{len(replays)} replays per {phase} step at batch {bucket}")
                return


def _skipped(configured: ConfiguredMode, detail: str) -> None:
    configured.status = msgspec.structs.replace(
        configured.status,
        effective=configured.mode.cuda.without_replay,
        reason=f"CUDA graphs were skipped: {detail}",
    )
