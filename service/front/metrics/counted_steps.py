"""The steps of a request that count in metrics, each once, whoever else was in it."""

from __future__ import annotations

from collections.abc import Sequence

from service.protocol.messages import Outcome
from service.protocol.timings import StepGroup, Timings


def counted_steps(outcome: Outcome, timings: Timings) -> Sequence[StepGroup]:
    """All steps of a request that ran alone; of one that was merged with others those that it counts."""
    if timings.shared is not None:
        return timings.shared.counted
    rows, batch = outcome.batch_size, outcome.batch_bucket
    prefill, decode = timings.prefill, timings.decode
    return (
        StepGroup(phase="prefill", batch=batch, rows=rows * prefill.steps, timings=prefill),
        StepGroup(phase="decode", batch=batch, rows=rows * decode.steps, timings=decode),
    )


def counted_switches(timings: Timings) -> int:
    """Involuntary switches, each once."""
    return timings.involuntary_switches if timings.shared is None else timings.shared.counted_switches
