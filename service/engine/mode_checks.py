"""What a mode must pass before it serves: parity with eager, and CUDA-graph replay where it promises that."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from models.served import Served
from service.engine.configured_mode import ConfiguredMode
from service.protocol.status import Attention, Parity
from service.step import parity
from service.step.attention import check_attention
from service.step.buffers import Buffers, prepare
from service.step.callables import Step
from service.step.profiling import profile_step


class ParityCheck:
    """Compares a mode's logits with those of eager, which are computed once per bucket."""

    def __init__(self, model: Served, buffers: dict[int, Buffers], eager: Step) -> None:
        self._config = model.config
        self._buffers = buffers
        self._reference = {bucket: self._logits(eager, eager, own) for bucket, own in buffers.items()}

    def run(self, configured: ConfiguredMode) -> Parity:
        """The verdict over all buckets."""
        verdicts = []
        for bucket, buffers in self._buffers.items():
            prefill, decode = configured.steps["prefill", bucket], configured.steps["decode", bucket]
            logits = self._logits(prefill, decode, buffers)
            verdicts.append(parity.compare(self._reference[bucket], logits, self._config.layers))
        return parity.worst(verdicts)

    def attention(self, eager: Step) -> list[Attention]:
        """What attention `eager` runs, and its logits beside those of the reference attention."""
        return check_attention(eager, self._buffers, self._reference, self._config)

    def _logits(self, prefill: Step, decode: Step, buffers: Buffers) -> Tensor:
        return parity.forced_logits(prefill, decode, buffers, self._config.vocabulary)


def verify_graph_replay(
    configured: ConfiguredMode, buffers: dict[int, Buffers], device: torch.device
) -> None:
    """A mode that promises graph replay shows one graph launch per decode step, or its status is changed."""
    if not configured.mode.effect(device.type).graph_replay:
        return
    for bucket, own in buffers.items():
        prepare(own)
        launches = profile_step(configured.steps["decode", bucket], own).graph_launches
        if launches != 1:
            reason = f"CUDA graphs were skipped: {launches} graph launches per decode step at batch {bucket}"
            configured.status = msgspec.structs.replace(
                configured.status,
                effective=configured.mode.cuda.without_replay,
                reason=reason,
                graph_captures=0,
            )
