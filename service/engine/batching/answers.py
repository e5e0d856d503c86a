"""Answers the jobs that leave a batch: exactly one Outcome each."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from functools import partial

from service.engine.batching.member import LeftMember
from service.engine.batching.shared_timings import shared_timings
from service.engine.configured_mode import ConfiguredMode
from service.engine.outcome import build_outcome
from service.engine.timings import StepEstimates
from service.protocol.messages import Outcome

EstimatesOf = Callable[[str, int], StepEstimates]
"""Costs per step of a mode in a batch bucket."""


class Answers:
    """`answered` is called after each that was sent. Involuntary switches are counted by who leaves first."""

    def __init__(
        self,
        modes: Mapping[str, ConfiguredMode],
        estimates: EstimatesOf,
        send: Callable[[Outcome], None],
        answered: Callable[[], None],
    ) -> None:
        self._modes = modes
        self._estimates = estimates
        self._send = send
        self._answered = answered
        self._switches = 0

    def batch_begins(self) -> None:
        """What the thread did before belongs to no job of it."""
        self._switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw

    def answer(self, left: LeftMember) -> None:
        """Answer a job that has ended, or never ran."""
        job, result = left.job, left.result
        switches = left.switches - self._switches
        if result.bucket and result.kind == "ok":
            self._switches = left.switches
        measured = partial(shared_timings, left, partial(self._estimates, job.mode), switches)
        self._send(build_outcome(job, result, self._modes.get(job.mode), measured))
        self._answered()
