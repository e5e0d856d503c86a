"""What every mode must pass before it serves: its logits are those of eager, which has to run first."""

from __future__ import annotations

from torch import Tensor

from models.served import Served
from service.engine.configured_mode import ConfiguredMode
from service.records import Parity
from service.step import parity
from service.step.attention import check_attention
from service.step.buffers import Buffers
from service.step.callables import Step
from service.step.device_errors import is_device_lost, is_out_of_memory


class Unservable(ValueError):
    """A model that does not run even in eager; the message names its architecture and the remedy."""


class ParityCheck:
    """Compares a mode's logits with those of eager, which are computed once per bucket.

    `attention` is what attention `eager` runs, its logits beside those of the reference attention.
    """

    def __init__(self, model: Served, buffers: dict[int, Buffers], eager: Step) -> None:
        self._config = model.config
        self._buffers = buffers
        self._reference = {bucket: self._logits(eager, eager, own) for bucket, own in buffers.items()}
        self.attention = check_attention(eager, buffers, self._reference, model.config)

    def run(self, configured: ConfiguredMode) -> Parity:
        """The verdict over all buckets."""
        verdicts = []
        for bucket, buffers in self._buffers.items():
            prefill, decode = configured.steps["prefill", bucket], configured.steps["decode", bucket]
            logits = self._logits(prefill, decode, buffers)
            verdicts.append(parity.compare(self._reference[bucket], logits, self._config.layers))
        return parity.worst(verdicts)

    def _logits(self, prefill: Step, decode: Step, buffers: Buffers) -> Tensor:
        return parity.forced_logits(prefill, decode, buffers, self._config.vocabulary)


def new_parity_check(model: Served, buffers: dict[int, Buffers], eager: Step) -> ParityCheck:
    """The check of all modes of `model`. Raises Unservable where `eager`, its step, does not run."""
    try:
        return ParityCheck(model, buffers, eager)
    except Exception as error:
        if is_device_lost(error):
            raise
        raise Unservable(_why(model.architecture, max(buffers), error)) from error


def _why(architecture: str, largest: int, error: Exception) -> str:
    if is_out_of_memory(error):
        return (
            f"{architecture} at batch {largest} needs more memory than there is ({error}): "
            "set LAUNCHBOUND_BATCH_SIZES or LAUNCHBOUND_CONTEXT to less"
        )
    return (
        f"{architecture} cannot be served: its eager step failed at batch {largest} "
        f"({type(error).__name__}: {error}); serve another architecture, such as Llama, GPT-2 or Qwen"
    )
