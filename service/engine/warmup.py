"""Makes modes ready one callable at a time: compile, capture, calibrate, and check parity with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter

import msgspec
from torch import Tensor
from torch._dynamo.utils import counters

from models.transformer import Transformer
from service.border.messages import Floor, ModeStatus, Parity, Phase
from service.border.modes import MODES, Mode
from service.step import parity
from service.step.calibration import Calibration, prepare
from service.step.callables import Buffers, Step
from service.step.profiling import profile_step

PHASES: tuple[Phase, ...] = ("decode", "prefill")

RUNS_TO_CAPTURE = 3
"""Calls after which every callable is in its final form: compile, CUDA-graph warm-up, capture."""


@dataclass(slots=True)
class Rung:
    """One configured mode: its row, its steps by (phase, bucket), and where it stands."""

    mode: Mode
    status: ModeStatus
    steps: dict[tuple[str, int], Step] = field(default_factory=dict)


class Warmup:
    """The configured rungs, made ready in the ladder's order."""

    def __init__(
        self, modes: list[str], model: Transformer, twin: Transformer, buffers: dict[int, Buffers],
        twin_buffers: dict[int, Buffers], calibration: Calibration, announce: Callable[[ModeStatus], None],
        build: Callable[[Mode, Transformer], Step],
    ) -> None:  # fmt: skip
        self._model, self._twin, self._buffers, self._twin_buffers = model, twin, buffers, twin_buffers
        self._calibration, self._announce, self._build = calibration, announce, build
        self._device = next(model.parameters()).device
        self._reference: dict[int, Tensor] = {}
        self.rungs = {name: self._cold(MODES[name]) for name in modes}

    def _cold(self, mode: Mode) -> Rung:
        effect = mode.effect(self._device.type)
        status = ModeStatus(
            mode=mode.name, removes=mode.removes, state="cold", effective=effect.name, reason=effect.reason
        )
        self._announce(status)
        return Rung(mode, status)

    def update(self, rung: Rung, **changes: object) -> None:
        """Change a rung's status and tell the front."""
        rung.status = msgspec.structs.replace(rung.status, **changes)
        self._announce(rung.status)

    def announce_floors(self) -> None:
        """Tell the front the floors of today where one moved, once per round over the twins."""
        if not self._calibration.round_complete:
            return
        for rung in self.rungs.values():
            if rung.status.state == "ready":
                self.update(rung, floors=self._floors(rung))

    def _floors(self, rung: Rung) -> list[Floor]:
        floors = (self._calibration.floor(rung.mode.name, bucket) for bucket in self._buffers)
        return [floor for floor in floors if floor]

    def run(self) -> Iterator[None]:
        """Make every mode ready; yields between compilations so that ready modes can serve."""
        for rung in self.rungs.values():
            self.update(rung, state="warming")
            began = perf_counter()
            try:
                yield from self._ready(rung, began)
            except Exception as error:  # noqa: BLE001 - whatever a backend raises fails this mode, not the engine
                rung.steps.clear()
                self.update(rung, state="failed", detail=f"{type(error).__name__}: {error}"[:2000])

    def _ready(self, rung: Rung, began: float) -> Iterator[None]:
        misses, seconds = counters["inductor"]["fxgraph_cache_miss"], 0.0
        for step, buffers, phase in self._callables(rung):
            started = perf_counter()
            step(*buffers.arguments(phase))
            first = perf_counter() - started
            for _ in range(RUNS_TO_CAPTURE):
                step(*buffers.arguments(phase))
            self._count(rung, first)
            seconds += perf_counter() - started
            yield
        self._prove_graphs(rung)
        began_check = perf_counter()
        self._calibration.first_samples(rung.mode.name)
        verdict = self._parity(rung)
        seconds += perf_counter() - began_check
        missed = counters["inductor"]["fxgraph_cache_miss"] > misses
        compiled = bool(rung.status.compile_seconds)
        self.update(
            rung, state="ready" if verdict.passed else "failed", parity=verdict,
            detail=None if verdict.passed else "out of parity with eager: see `parity`",
            floors=self._floors(rung), warmup_seconds=seconds,
            cache=("cold" if missed else "warm") if compiled else None,
        )  # fmt: skip

    def _count(self, rung: Rung, first_seconds: float) -> None:
        """One more callable is in its final form: note what its first call took, and its graph."""
        effect, status = rung.mode.effect(self._device.type), rung.status
        if effect.compile is not None:
            rung.status = msgspec.structs.replace(
                status, compile_seconds=[*status.compile_seconds, first_seconds],
                graph_captures=status.graph_captures + effect.graph_replay,
            )  # fmt: skip

    def _callables(self, rung: Rung) -> Iterator[tuple[Step, Buffers, Phase]]:
        """Every callable of a mode, largest bucket first so that graph pools are sized once."""
        for bucket in sorted(self._buffers, reverse=True):
            for phase in PHASES:
                step = self._build(rung.mode, self._model)
                rung.steps[phase, bucket] = step
                prepare(self._buffers[bucket])
                yield step, self._buffers[bucket], phase
        for buffers in self._twin_buffers.values():
            step = self._build(rung.mode, self._twin)
            prepare(buffers)
            yield step, buffers, "decode"
            self._calibration.add(rung.mode.name, step, buffers)

    def _parity(self, rung: Rung) -> Parity:
        config = self._model.config
        verdicts = []
        for bucket, buffers in self._buffers.items():
            if bucket not in self._reference:
                eager = self._build(MODES["eager"], self._model)
                self._reference[bucket] = parity.forced_logits(eager, eager, buffers, config.vocabulary)
            logits = parity.forced_logits(
                rung.steps["prefill", bucket], rung.steps["decode", bucket], buffers, config.vocabulary
            )
            verdicts.append(parity.compare(self._reference[bucket], logits, config.layers))
        return parity.worst(verdicts)

    def _prove_graphs(self, rung: Rung) -> None:
        """A mode that promises graph replay shows one graph launch per decode step, or is renamed."""
        effect = rung.mode.effect(self._device.type)
        if not effect.graph_replay:
            return
        for bucket, buffers in self._buffers.items():
            prepare(buffers)
            launches = profile_step(rung.steps["decode", bucket], buffers).graph_launches
            if launches != 1:
                reason = (
                    f"CUDA graphs were skipped: {launches} graph launches per decode step at batch {bucket}"
                )
                rung.status = msgspec.structs.replace(
                    rung.status, effective="compiled", reason=reason, graph_captures=0
                )
