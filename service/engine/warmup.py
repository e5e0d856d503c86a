"""Makes modes ready one callable at a time: compile, capture, calibrate, and check parity with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter

import msgspec
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters

from models.served import Served
from service.protocol.messages import Phase
from service.protocol.modes import MODES, Mode
from service.protocol.status import Floor, ModeStatus, Parity
from service.step import parity
from service.step.calibration import Calibration, prepare
from service.step.callables import Buffers, Step
from service.step.profiling import profile_step

PHASES: tuple[Phase, ...] = ("decode", "prefill")

RUNS_TO_CAPTURE = 3
"""Calls after which every callable is in its final form: compile, CUDA-graph warm-up, capture."""


@dataclass(slots=True)
class ModeState:
    """One configured mode: its row, its steps by (phase, bucket), and where it stands."""

    mode: Mode
    status: ModeStatus
    steps: dict[tuple[str, int], Step] = field(default_factory=dict)


class Warmup:
    """The configured mode_states, made ready in the ladder's order."""

    def __init__(
        self,
        modes: list[str],
        model: Served,
        buffers: dict[int, Buffers],
        twin_buffers: dict[int, Buffers],
        calibration: Calibration,
        announce: Callable[[ModeStatus], None],
        build: Callable[[Mode, nn.Module], Step],
    ) -> None:
        self._model, self._buffers, self._twin_buffers = model, buffers, twin_buffers
        self._calibration, self._announce, self._build = calibration, announce, build
        self._device = next(model.parameters()).device
        self._reference: dict[int, Tensor] = {}
        self.mode_states = {name: self._cold(MODES[name]) for name in modes}

    def _cold(self, mode: Mode) -> ModeState:
        effect = mode.effect(self._device.type)
        status = ModeStatus(
            mode=mode.name, removes=mode.removes, state="cold", effective=effect.name, reason=effect.reason
        )
        self._announce(status)
        return ModeState(mode, status)

    def update(self, mode_state: ModeState, **changes: object) -> None:
        """Change a mode_state's status and tell the front."""
        mode_state.status = msgspec.structs.replace(mode_state.status, **changes)
        self._announce(mode_state.status)

    def recalibrate(self) -> None:
        """Take the floors of all ready modes anew, now that nothing else goes on in this process."""
        self._calibration.begin_anew()
        for mode_state in self.mode_states.values():
            if mode_state.status.state == "ready":
                self.update(mode_state, floors=self._floors(mode_state))

    def announce_floors(self) -> None:
        """Tell the front the floors of today where one moved, once per round over the twins."""
        if not self._calibration.round_complete:
            return
        for mode_state in self.mode_states.values():
            if mode_state.status.state == "ready":
                self.update(mode_state, floors=self._floors(mode_state))

    def _floors(self, mode_state: ModeState) -> list[Floor]:
        floors = (self._calibration.floor(mode_state.mode.name, bucket) for bucket in self._buffers)
        return [floor for floor in floors if floor]

    def run(self) -> Iterator[None]:
        """Make every mode ready; yields between compilations so that ready modes can serve.

        What is needed once for all modes is done before the mode that needs it first, so that no mode's
        warm-up contains it.
        """
        self._reference = {
            bucket: self._logits_of_eager(buffers) for bucket, buffers in self._buffers.items()
        }
        compiler_loaded = False
        for mode_state in self.mode_states.values():
            self.update(mode_state, state="warming")
            if mode_state.mode.effect(self._device.type).compile is not None and not compiler_loaded:
                load_compiler(self._device)
                compiler_loaded = True
            try:
                yield from self._ready(mode_state)
            except torch.AcceleratorError:
                # The device's context is gone for every mode: the front starts a new engine.
                raise
            except Unsupported as error:
                self._fail(mode_state, self._not_one_graph(error))
            except Exception as error:  # noqa: BLE001 - whatever a backend raises fails this mode, not the engine
                self._fail(mode_state, f"{type(error).__name__}: {error}"[:2000])

    def _not_one_graph(self, error: Unsupported) -> str:
        plain = [
            name
            for name, mode_state in self.mode_states.items()
            if not mode_state.mode.effect(self._device.type).compile
        ]
        remain = f"what remains: {', '.join(plain)}" if plain else "no configured mode remains: add eager"
        return f"this model cannot be compiled as one graph; {remain}. {error}"[:2000]

    def _fail(self, mode_state: ModeState, detail: str) -> None:
        mode_state.steps.clear()
        self._calibration.remove(mode_state.mode.name)
        self.update(mode_state, state="failed", detail=detail)

    def _ready(self, mode_state: ModeState) -> Iterator[None]:
        misses, seconds = counters["inductor"]["fxgraph_cache_miss"], 0.0
        graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
        for step, buffers, phase in self._callables(mode_state):
            started = perf_counter()
            step(*buffers.arguments(phase))
            first = perf_counter() - started
            for _ in range(RUNS_TO_CAPTURE):
                step(*buffers.arguments(phase))
            self._count(mode_state, first)
            seconds += perf_counter() - started
            yield
        self._prove_graphs(mode_state)
        compiled = len(mode_state.status.compile_seconds)
        missed = counters["inductor"]["fxgraph_cache_miss"] > misses
        began = perf_counter()
        self._calibration.first_samples(mode_state.mode.name)
        verdict = self._parity(mode_state)
        mode_state.status = msgspec.structs.replace(
            mode_state.status,
            parity=verdict,
            floors=self._floors(mode_state),
            warmup_seconds=seconds + perf_counter() - began,
            cache=("cold" if missed else "warm") if compiled else None,
            graph_breaks=sum(counters["graph_break"].values()) - breaks,
            recompiles=max(0, counters["stats"]["unique_graphs"] - graphs - compiled),
        )
        if verdict.passed:
            self.update(mode_state, state="ready")
        else:
            self._fail(mode_state, "out of parity with eager: see `parity`")

    def _count(self, mode_state: ModeState, first_seconds: float) -> None:
        """One more callable is in its final form: note what its first call took, and its graph."""
        effect, status = mode_state.mode.effect(self._device.type), mode_state.status
        if effect.compile is not None:
            mode_state.status = msgspec.structs.replace(
                status,
                compile_seconds=[*status.compile_seconds, first_seconds],
                graph_captures=status.graph_captures + effect.graph_replay,
            )

    def _callables(self, mode_state: ModeState) -> Iterator[tuple[Step, Buffers, Phase]]:
        """Every callable of a mode, largest bucket first so that graph pools are sized once."""
        for bucket in sorted(self._buffers, reverse=True):
            for phase in PHASES:
                step = self._build(mode_state.mode, self._model)
                mode_state.steps[phase, bucket] = step
                prepare(self._buffers[bucket])
                yield step, self._buffers[bucket], phase
        for buffers in self._twin_buffers.values():
            step = self._build(mode_state.mode, self._calibration.twin_of(mode_state.mode))
            prepare(buffers)
            yield step, buffers, "decode"
            self._calibration.add(mode_state.mode, step, buffers)

    def _logits_of_eager(self, buffers: Buffers) -> Tensor:
        eager = self._build(MODES["eager"], self._model)
        return parity.forced_logits(eager, eager, buffers, self._model.config.vocabulary)

    def _parity(self, mode_state: ModeState) -> Parity:
        config = self._model.config
        verdicts = []
        for bucket, buffers in self._buffers.items():
            prefill, decode = mode_state.steps["prefill", bucket], mode_state.steps["decode", bucket]
            logits = parity.forced_logits(prefill, decode, buffers, config.vocabulary)
            verdicts.append(parity.compare(self._reference[bucket], logits, config.layers))
        return parity.worst(verdicts)

    def _prove_graphs(self, mode_state: ModeState) -> None:
        """A mode that promises graph replay shows one graph launch per decode step, or is renamed."""
        effect = mode_state.mode.effect(self._device.type)
        if not effect.graph_replay:
            return
        for bucket, buffers in self._buffers.items():
            prepare(buffers)
            launches = profile_step(mode_state.steps["decode", bucket], buffers).graph_launches
            if launches != 1:
                reason = (
                    f"CUDA graphs were skipped: {launches} graph launches per decode step at batch {bucket}"
                )
                mode_state.status = msgspec.structs.replace(
                    mode_state.status, effective="compiled", reason=reason, graph_captures=0
                )


def load_compiler(device: torch.device) -> None:
    """Compile something trivial: the compiler's own start takes seconds, and is no mode's price."""
    torch.compile(_trivial, fullgraph=True)(torch.zeros(1, device=device))


def _trivial(x: Tensor) -> Tensor:
    return x + 1
