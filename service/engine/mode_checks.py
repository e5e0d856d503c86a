"""What a mode must pass before it serves where it promises it: CUDA-graph replay."""

from __future__ import annotations

import msgspec
import torch

from service.engine.configured_mode import ConfiguredMode
from service.protocol.messages import Phase
from service.step.buffers import Buffers, prepare
from service.step.callables import Step
from service.step.profiling import profile_step
from service.step.trace import ProfiledStep

PHASES: tuple[Phase, ...] = ("decode", "prefill")


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
                _not_proved(configured, f"{where}: {seen.unknown}")
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


def _not_proved(configured: ConfiguredMode, detail: str) -> None:
    """The mode keeps its name: torch counted no skip, and nothing contradicts it."""
    configured.status = msgspec.structs.replace(
        configured.status, reason=f"graph replay is not proved {detail}"
    )
