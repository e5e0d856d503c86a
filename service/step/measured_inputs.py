"""What a measured step is called with: the same for the engine's own samples, studies and the selftest."""

from __future__ import annotations

from service.records import Phase
from service.step.buffers import Arguments, Buffers
from service.step.untimed import DECODE_POSITION, PREFILL_TOKENS


def measured_arguments(buffers: Buffers, phase: Phase) -> Arguments:
    """Those of a decode step, or of a prefill of PREFILL_TOKENS per row, fewer where a chunk is shorter."""
    if phase == "decode":
        return buffers.arguments("decode")
    length = buffers.padded(min(PREFILL_TOKENS, buffers.chunk_length))
    return buffers.arguments("prefill", length)


def set_positions(buffers: Buffers, phase: Phase) -> None:
    """Write the positions of a measured step: phases share them, and decode's are out of prefill's reach.

    A job that ended between two chunks has left indexes of the longer one in `last`.
    """
    buffers.last.zero_()
    if phase == "decode":
        buffers.positions.fill_(min(DECODE_POSITION, max(buffers.caches) - 1))
    else:
        buffers.positions.zero_()
