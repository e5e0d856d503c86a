"""Makes modes ready one callable at a time: compile, capture, check parity; then samples their steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from time import perf_counter, thread_time

import msgspec
from torch._dynamo.exc import Unsupported

from models.served import Served
from service.engine.cache_doubt import CacheBroken, CacheDoubt
from service.engine.capture import BuildStep, Capture, CompiledElsewhere, callable_name
from service.engine.cold_starts import ColdStarts
from service.engine.compiler import load_compiler, not_one_graph, read_compile_counts, turned_off, unlike
from service.engine.configured_mode import ConfiguredMode
from service.engine.mode_checks import verify_graph_replay
from service.engine.parity_check import ParityCheck, new_parity_check
from service.engine.step_shares import StepShares
from service.protocol.modes import MODES, Mode
from service.protocol.status import Attention, ModeStatus
from service.step.attention import wrong_attention
from service.step.buffers import Buffers
from service.step.device_errors import free_memory, is_device_lost
from service.step.process_state import resident_bytes


class Warmup:
    """The configured modes, made ready in the ladder's order.

    `reference_seconds` is what eager's reference took, `reference_busy_seconds` what it took of this thread's
    CPU time.
    """

    def __init__(
        self,
        modes: list[str],
        model: Served,
        buffers: dict[int, Buffers],
        announce: Callable[[ModeStatus], None],
        build: BuildStep,
        cold_starts: ColdStarts,
        shares: StepShares,
        doubt: CacheDoubt | None,
    ) -> None:
        self._model = model
        self._buffers = buffers
        self._shares = shares
        self._capture = Capture(model, buffers, build, cold_starts)
        self._announce = announce
        self._build = build
        self._device = next(model.parameters()).device
        self.modes = {name: self._cold(MODES[name]) for name in modes}
        self._doubt = doubt
        self.attention: list[Attention] = []
        self.reference_seconds = self.reference_busy_seconds = 0.0
        self._proofs: list[tuple[ConfiguredMode, Callable[[], None]]] = []
        self._compiler_loaded = False
        self._start_elsewhere: Callable[[], CompiledElsewhere | None] = lambda: None

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

        What is needed once for all modes is done before the mode that needs it first, so that no mode's
        warm-up contains it. A mode that promises graph replay is not ready until `finish` has proved it.
        """
        began, busy = perf_counter(), thread_time()
        parity_check = new_parity_check(self._model, self._buffers, self._build(MODES["eager"], self._model))
        self.attention = parity_check.attention
        self.reference_seconds, self.reference_busy_seconds = perf_counter() - began, thread_time() - busy
        for configured in self.modes.values():
            self.update(configured, state="warming")
            yield from self._or_fail(configured, self._warm(configured, parity_check))

    def share(self, start: Callable[[], CompiledElsewhere | None]) -> None:
        """Have another process compile into the same cache, which `start` starts where anything compiles."""
        self._start_elsewhere = start

    def compile(self) -> Iterator[tuple[str, float | None]]:
        """Compile every callable of the configured modes, for the cache alone; name and seconds of each.

        None for the seconds of one whose code another process had put there meanwhile: that is no cold start.

        In the order in which `run` needs them.
        """
        load_compiler(self._device)
        for name, configured in self.modes.items():
            for _ in self._capture.serving(configured):
                newest = configured.status.compilations[-1]
                seconds = newest.seconds if newest.cold else None
                yield callable_name(name, newest.phase, newest.batch), seconds

    @property
    def doing(self) -> str:
        """What the next piece of work belongs to."""
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
            yield from self._or_fail(configured, self._shares.burst(configured, self._buffers))
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
        effect = self._capture.effect(configured)
        if effect.compile is not None and (off := turned_off()):
            self._fail(configured, off)
            return
        doubt = self._doubt if self._compiles(configured) else None
        if self._compiles(configured) and not self._compiler_loaded:
            self._capture.elsewhere = self._start_elsewhere()
            loading = self._load_compiler()
            yield from (doubt.watched(configured.mode.name, loading) if doubt else loading)
        before = read_compile_counts()
        resident = resident_bytes()
        capture = self._capture.serving(configured)
        seconds = yield from (doubt.watched(configured.mode.name, capture) if doubt else capture)
        seen = before.increase()
        compilations = configured.status.compilations
        began = perf_counter()
        verdict = parity_check.run(configured)
        configured.status = msgspec.structs.replace(
            configured.status,
            parity=verdict,
            warmup_seconds=seconds + perf_counter() - began,
            cache=("cold" if any(one.cold for one in compilations) else "warm") if compilations else None,
            resident_bytes=max(0, resident_bytes() - resident),
        )
        self._capture.count_graphs(configured, before, compiled_before=0)
        if unlike_row := unlike(effect, len(configured.steps), seen):
            self._fail(configured, unlike_row)
            return
        if doubt is not None:
            doubt.judged(configured.mode.name, verdict.passed)
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
        proof()
        self.update(configured, state="ready", graph_captures=self._captures(configured))
        yield

    def _captures(self, configured: ConfiguredMode) -> int:
        """The graphs of a mode that replays them; none of one whose graphs were skipped."""
        effect = self._capture.effect(configured)
        replays = effect.graph_replay and configured.status.effective == effect.name
        return configured.captures if replays else 0
