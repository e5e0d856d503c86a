"""Makes modes ready one callable at a time (compile, capture, check parity), then gives them floors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import msgspec
from torch import nn
from torch._dynamo.exc import Unsupported

from models.served import Served
from service.engine.cold_starts import ColdStarts
from service.engine.compiler import CompileCounts, load_compiler, read_compile_counts
from service.engine.configured_mode import ConfiguredMode
from service.engine.mode_checks import ParityCheck, verify_graph_replay
from service.engine.stack_shares import StackShares
from service.protocol.messages import FloorSamples, Phase
from service.protocol.modes import MODES, Mode
from service.protocol.status import Attention, Compilation, Floor, ModeStatus
from service.step.attention import wrong_attention
from service.step.buffers import Arguments, Buffers, prepare
from service.step.calibration import Calibration
from service.step.callables import Step
from service.step.device_errors import free_memory, is_device_lost
from service.step.process_state import resident_bytes
from service.step.untimed import CALLS_TO_CAPTURE

PHASES: tuple[Phase, ...] = ("decode", "prefill")


@dataclass(frozen=True, slots=True)
class _Callable:
    """A step to be warmed, in each of `shapes`, largest first."""

    step: Step
    shapes: list[Arguments]
    phase: Phase
    bucket: int
    twin: bool = False


class Warmup:
    """The configured modes, made ready in the ladder's order."""

    def __init__(
        self,
        modes: list[str],
        model: Served,
        buffers: dict[int, Buffers],
        twin_inputs: Sequence[tuple[Phase, int, Arguments]],
        calibration: Calibration,
        announce: Callable[[ModeStatus], None],
        build: Callable[[Mode, nn.Module], Step],
        cold_starts: ColdStarts,
        stacks: StackShares,
    ) -> None:
        self._model = model
        self._buffers = buffers
        self._twin_inputs = twin_inputs
        self._calibration = calibration
        self._announce = announce
        self._build = build
        self._cold_starts = cold_starts
        self._device = next(model.parameters()).device
        self.modes = {name: self._cold(MODES[name]) for name in modes}
        self.stacks = stacks
        self.attention: list[Attention] = []

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

    def recalibrate(self) -> Iterator[None]:
        """Take the floors of all ready modes again, by both witnesses; yields where other work does no harm.

        The stacks of a mode change only at the end, all at once.
        """
        self._calibration.resample()
        yield from self.stacks.resample(self._ready())
        self._announce_floors()

    def floor_samples(self) -> list[FloorSamples]:
        """The floors of all ready modes with the twin's samples."""
        return [
            FloorSamples(
                mode=name,
                floor=floor,
                samples_seconds=list(self._calibration.samples(name, floor.phase, floor.batch)),
            )
            for name, configured in self._ready().items()
            for floor in self._floors(configured)
        ]

    def floor(self, mode: str, phase: Phase, bucket: int) -> Floor | None:
        """Dispatch of one step, by both witnesses; None before it is calibrated."""
        floor = self._calibration.floor(mode, phase, bucket)
        if floor is None:
            return None
        return msgspec.structs.replace(floor, stacks=self.stacks.share(mode, phase, bucket))

    def _ready(self) -> dict[str, ConfiguredMode]:
        return {name: one for name, one in self.modes.items() if one.status.state == "ready"}

    def announce_floors(self) -> None:
        """Send the current floors of all ready modes, once per round of refreshes over the twins."""
        if self._calibration.round_complete:
            self._announce_floors()

    def _announce_floors(self) -> None:
        for configured in self._ready().values():
            self.update(configured, floors=self._floors(configured))

    def _floors(self, configured: ConfiguredMode) -> list[Floor]:
        floors = (
            self.floor(configured.mode.name, phase, bucket) for phase in PHASES for bucket in self._buffers
        )
        return [floor for floor in floors if floor]

    def run(self) -> Iterator[None]:
        """Make every mode ready, then give each its floors; yields so that ready modes can serve meanwhile.

        What is needed once for all modes is done before the mode that needs it first, so that no mode's
        warm-up contains it. A mode needs no twin to serve: one that takes seconds to compile waits until all
        modes are ready, and until then its mode has no floors.
        """
        eager = self._build(MODES["eager"], self._model)
        parity_check = ParityCheck(self._model, self._buffers, eager)
        self.attention = parity_check.attention(eager)
        compiler_loaded = False
        for configured in self.modes.values():
            self.update(configured, state="warming")
            compiles = self._compiles(configured)
            if compiles and not compiler_loaded:
                load_compiler(self._device)
                compiler_loaded = True
            yield from self._or_fail(configured, self._warm(configured, parity_check))
            if not compiles and configured.status.state == "ready":
                yield from self._or_fail(configured, self._calibrate(configured))
        for configured in self._ready().values():
            if self._compiles(configured) and self._calibration.needs_twin(configured.mode):
                yield from self._or_fail(configured, self._calibrate(configured))

    def _or_fail(self, configured: ConfiguredMode, work: Iterator[None]) -> Iterator[None]:
        """Do `work`, which fails its mode, and no other, by what it raises."""
        try:
            yield from work
        except Unsupported as error:
            self._fail(configured, self._not_one_graph(error))
        except Exception as error:
            if is_device_lost(error):
                # For every mode: the front starts a new engine.
                raise
            self._fail(configured, f"{type(error).__name__}: {error}"[:2000])
            free_memory(error)

    def _compiles(self, configured: ConfiguredMode) -> bool:
        return configured.mode.effect(self._device.type).compiles

    def _not_one_graph(self, error: Unsupported) -> str:
        plain = [name for name, configured in self.modes.items() if not self._compiles(configured)]
        remain = f"what remains: {', '.join(plain)}" if plain else "no configured mode remains: add eager"
        return f"this model cannot be compiled as one graph; {remain}. {error}"[:2000]

    def _fail(self, configured: ConfiguredMode, detail: str) -> None:
        configured.steps.clear()
        self._calibration.remove(configured.mode.name)
        self.update(configured, state="failed", detail=detail)

    def _warm(self, configured: ConfiguredMode, parity_check: ParityCheck) -> Iterator[None]:
        """Capture every callable that serves a mode, then check its parity."""
        before = read_compile_counts()
        resident = resident_bytes()
        seconds = yield from self._capture(configured, self._callables(configured))
        verify_graph_replay(configured, self._buffers, self._device)
        missed = before.increase().cache_misses > 0
        began = perf_counter()
        verdict = parity_check.run(configured)
        configured.status = msgspec.structs.replace(
            configured.status,
            parity=verdict,
            warmup_seconds=seconds + perf_counter() - began,
            cache=("cold" if missed else "warm") if configured.status.compile_seconds else None,
            resident_bytes=max(0, resident_bytes() - resident),
        )
        self._count_graphs(configured, before, compiled_before=0)
        if not verdict.passed:
            self._fail(configured, "out of parity with eager: see `parity`")
        elif wrong := wrong_attention(self.attention):
            self._fail(configured, wrong)
        else:
            self.update(configured, state="ready")

    def _calibrate(self, configured: ConfiguredMode) -> Iterator[None]:
        """Capture the hollow twins of a ready mode and take its first floors, of all phases at once."""
        before = read_compile_counts()
        compiled_before = len(configured.status.compile_seconds)
        yield from self._capture(configured, self._twins(configured))
        self._calibration.first_samples(configured.mode.name)
        self._count_graphs(configured, before, compiled_before)
        self.update(configured, floors=self._floors(configured))

    def _count_graphs(self, configured: ConfiguredMode, before: CompileCounts, compiled_before: int) -> None:
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
        """Call each of `callables` until it is in its final form; returns the seconds that took."""
        seconds = 0.0
        for one in callables:
            misses = read_compile_counts()
            started = perf_counter()
            one.step(*one.shapes[0])
            first = perf_counter() - started
            if self._graphs(configured):
                for arguments in one.shapes:
                    for _ in range(CALLS_TO_CAPTURE - 1):
                        one.step(*arguments)
                self._count_captures(configured, len(one.shapes))
            else:
                # Its first call is final; another shape shows that one compilation serves all of them.
                one.step(*one.shapes[-1])
            if self._compiles(configured):
                self._count(configured, one, first, cold=misses.increase().cache_misses > 0)
            seconds += perf_counter() - started
            yield
        return seconds

    def _count(self, configured: ConfiguredMode, one: _Callable, seconds: float, cold: bool) -> None:
        """Record the first call of a compiled callable."""
        status = configured.status
        compilation = Compilation(
            phase=one.phase,
            batch=one.bucket,
            twin=one.twin,
            seconds=seconds,
            cold=cold,
            cold_seconds=self._cold_starts.recorded(
                f"{configured.mode.name} {one.phase} {one.bucket}{' twin' * one.twin}",
                seconds if cold else None,
            ),
        )
        configured.status = msgspec.structs.replace(
            status,
            compilations=[*status.compilations, compilation],
            compile_seconds=[*status.compile_seconds, seconds],
        )

    def _count_captures(self, configured: ConfiguredMode, graphs: int) -> None:
        status = configured.status
        configured.status = msgspec.structs.replace(status, graph_captures=status.graph_captures + graphs)

    def _graphs(self, configured: ConfiguredMode) -> bool:
        return configured.mode.effect(self._device.type).graph_replay

    def _callables(self, configured: ConfiguredMode) -> Iterator[_Callable]:
        """Every callable that serves a mode, largest bucket first so that graph pools are sized once."""
        for bucket in sorted(self._buffers, reverse=True):
            buffers = self._buffers[bucket]
            for phase in PHASES:
                step = self._build(configured.mode, self._model)
                configured.steps[phase, bucket] = step
                prepare(buffers)
                yield _Callable(step, list(buffers.shapes(phase)), phase, bucket)

    def _twins(self, configured: ConfiguredMode) -> Iterator[_Callable]:
        """The hollow twin's callables of a mode; each joins the round of floors once it is captured."""
        for phase, bucket, arguments in self._twin_inputs:
            step = self._build(configured.mode, self._calibration.twin_of(configured.mode))
            yield _Callable(step, [arguments], phase, bucket, twin=True)
            self._calibration.add(configured.mode, phase, bucket, step, arguments)
