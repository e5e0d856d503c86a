"""Probe of shapes: prompts at their own lengths, against one padded length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

from torch import Tensor

from models.served import Cache
from service.anatomy.errors import StudyError
from service.anatomy.operators.guards import entries
from service.anatomy.probes.blame import line_that_calls
from service.anatomy.probes.comparison import Counter, FaultComparison, TimedStep
from service.anatomy.probes.compiling import compiled, failed_guard, seconds_of, why_recompiled
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.progress import Report

LIMIT = 2
"""The recompile limit, lowered from torch's 8 so that the probe takes less time."""

_MOST_LENGTHS = 10


def unbucketed_shape(probed: ProbedModel, report: Report) -> FaultComparison:
    """Prompts of several lengths padded to one shape, and each in its own."""
    prompts = prompts_of_lengths(probed, LIMIT + 1)
    padded, own = compiled(probed.model), compiled(probed.model)
    without = probed.served(_padding(padded, cycle(prompts)), "prefill")
    report("compiling one padded length")
    without()
    first = probed.served(unpadded(own, iter(prompts[:LIMIT])), "prefill")
    report(f"compiling {LIMIT} lengths")
    first()
    new_shape = seconds_of(first)
    reason = why_recompiled()
    # All entries are used; the lengths that have one do not come again.
    with_fault = probed.served(unpadded(own, cycle(prompts[LIMIT:])), "prefill")
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        blame=line_that_calls(own.__code__, with_fault),
        counter=Counter(name="compiled_entries", before=len(entries(padded)), after=len(entries(own))),
        notes=[
            failed_guard(reason),
            f"A new length took {new_shape:.2f} s to compile. What is timed comes after it: {LIMIT} entries "
            "are used up (torch's own limit is 8), and each further length runs uncompiled.",
            "With `fullgraph=True`, as the compiled modes have it, the limit raises instead.",
        ],
    )


def prompts_of_lengths(probed: ProbedModel, fewest: int) -> list[Tensor]:
    """Chunks of different lengths, all shorter than a whole one. Raises StudyError below `fewest`."""
    chunk = probed.buffers.arguments("prefill")[0]
    longest = chunk.shape[1] - 1
    lengths = range(longest, max(longest - _MOST_LENGTHS, 1), -1)
    if len(lengths) < fewest:
        raise StudyError(
            "unsupported_here",
            f"prompts of several lengths do not fit a prefill chunk of {chunk.shape[1]}: make it 8 or more",
        )
    return [chunk[:, :length].clone() for length in lengths]


def _padding(step: Callable[..., object], prompts: Iterator[Tensor]) -> Callable[..., object]:
    def pad(chunk: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> object:
        prompt = next(prompts)
        length = prompt.shape[1]
        chunk[:, :length] = prompt
        chunk[:, length:] = 0
        last.fill_(length - 1)
        return step(chunk, positions, last, cache)

    return pad


def unpadded(step: Callable[..., object], prompts: Iterator[Tensor]) -> Callable[..., object]:
    """A step that runs the next of `prompts` in the place of the chunk that it is called with."""

    def run_unpadded(chunk: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> object:
        prompt = next(prompts)
        last.fill_(prompt.shape[1] - 1)
        return step(prompt, positions, last, cache)

    return run_unpadded
