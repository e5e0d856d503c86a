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
from service.border.messages import Phase
from service.border.modes import MODES, Mode
from service.border.status import Floor, ModeStatus, Parity
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
        self, modes: list[str], model: Served, buffers: dict[int, Buffers],
        twin_buffers: dict[int, Buffers], calibration: Calibration, announce: Callable[[ModeStatus], None],
        build: Callable[[Mode, nn.Module], Step],
    ) -> None:  # fmt: skip
        self._model, self._buffers, self._twin_buffers = model, buffers, twin_buffers
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

    def recalibrate(self) -> None:
        """Take the floors of all ready modes anew, now that nothing else goes on in this process."""
        self._calibration.begin_anew()
        for rung in self.rungs.values():
            if rung.status.state == "ready":
                self.update(rung, floors=self._floors(rung))

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
        """Make every mode ready; yields between compilations so that ready modes can serve.

        What is needed once for all modes is done before the mode that needs it first, so that no mode's
        warm-up contains it.
        """
        self._reference = {
            bucket: self._logits_of_eager(buffers) for bucket, buffers in self._buffers.items()
        }
        compiler_loaded = False
        for rung in self.rungs.values():
            self.update(rung, state="warming")
            if rung.mode.effect(self._device.type).compile is not None and not compiler_loaded:
                load_compiler(self._device)
                compiler_loaded = True
            try:
                yield from self._ready(rung)
            except torch.AcceleratorError:
                # The device's context is gone for every mode: the front starts a new engine.
                raise
            except Unsupported as error:
                self._fail(rung, self._not_one_graph(error))
            except Exception as error:  # noqa: BLE001 - whatever a backend raises fails this mode, not the engine
                self._fail(rung, f"{type(error).__name__}: {error}"[:2000])

    def _not_one_graph(self, error: Unsupported) -> str:
        plain = [name for name, rung in self.rungs.items() if not rung.mode.effect(self._device.type).compile]
        remain = f"what remains: {', '.join(plain)}" if plain else "no configured mode remains: add eager"
        return f"this model cannot be compiled as one graph; {remain}. {error}"[:2000]

    def _fail(self, rung: Rung, detail: str) -> None:
        rung.steps.clear()
        self._calibration.remove(rung.mode.name)
        self.update(rung, state="failed", detail=detail)

    def _ready(self, rung: Rung) -> Iterator[None]:
        misses, seconds = counters["inductor"]["fxgraph_cache_miss"], 0.0
        graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
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
        compiled = len(rung.status.compile_seconds)
        missed = counters["inductor"]["fxgraph_cache_miss"] > misses
        began = perf_counter()
        self._calibration.first_samples(rung.mode.name)
        verdict = self._parity(rung)
        rung.status = msgspec.structs.replace(
            rung.status, parity=verdict, floors=self._floors(rung),
            warmup_seconds=seconds + perf_counter() - began,
            cache=("cold" if missed else "warm") if compiled else None,
            graph_breaks=sum(counters["graph_break"].values()) - breaks,
            recompiles=max(0, counters["stats"]["unique_graphs"] - graphs - compiled),
        )  # fmt: skip
        if verdict.passed:
            self.update(rung, state="ready")
        else:
            self._fail(rung, "out of parity with eager: see `parity`")

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
            step = self._build(rung.mode, self._calibration.twin_of(rung.mode))
            prepare(buffers)
            yield step, buffers, "decode"
            self._calibration.add(rung.mode, step, buffers)

    def _logits_of_eager(self, buffers: Buffers) -> Tensor:
        eager = self._build(MODES["eager"], self._model)
        return parity.forced_logits(eager, eager, buffers, self._model.config.vocabulary)

    def _parity(self, rung: Rung) -> Parity:
        config = self._model.config
        verdicts = []
        for bucket, buffers in self._buffers.items():
            prefill, decode = rung.steps["prefill", bucket], rung.steps["decode", bucket]
            logits = parity.forced_logits(prefill, decode, buffers, config.vocabulary)
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


def load_compiler(device: torch.device) -> None:
    """Compile something trivial: the compiler's own start takes seconds, and is no mode's price."""
    torch.compile(_trivial, fullgraph=True)(torch.zeros(1, device=device))


def _trivial(x: Tensor) -> Tensor:
    return x + 1
