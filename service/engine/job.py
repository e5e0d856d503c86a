"""A job while it runs: what is recorded of it, and whether it is to go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, get_args

from service.engine.inbox import Inbox, LocalInbox
from service.engine.text import Completions
from service.records import Job, OutcomeKind, Parity, Phase, Problem, StepProfile
from service.step.callables import AnyStep
from service.step.meters import Meter, Readings
from service.workloads import GENERATE, Workload

POLL_NS = 10_000_000
"""A job that runs alone polls no more often: only a cancellation can arrive, and a poll takes 2 to 16 µs."""


@dataclass(slots=True)
class JobResult:
    """Filled in while the job runs, so that a job that ends early keeps what was measured until then.

    `taken_ns`, `first_token_ns` and `ended_ns` (its last step's bookkeeping is done) are instants of
    `perf_counter_ns`, `queue_ns` and `tokenise_ns`, in which its inputs are made, durations. `bucket` is 0
    for a job that did not start.
    """

    taken_ns: int = 0
    queue_ns: int = 0
    kind: OutcomeKind = "ok"
    problem: Problem | None = None
    profile: list[StepProfile] | None = None
    bucket: int = 0
    size: int = 0
    prompt_tokens: int = 0
    padded_prompt_tokens: int = 0
    attended_tokens: int = 0
    rows: Completions | None = None
    forward_outputs: bytes | None = None
    parity: Parity | None = None
    workload: Workload = GENERATE
    prefill: Readings = field(default_factory=Readings)
    decode: Readings = field(default_factory=Readings)
    forward: Readings = field(default_factory=Readings)
    tokenise_ns: int = 0
    first_token_ns: int | None = None
    ended_ns: int = 0
    involuntary_switches: int = 0
    sampled: bool = False

    def fail(self, problem: Problem, kind: OutcomeKind = "error") -> None:
        self.kind = kind
        self.problem = problem

    def of(self, phase: Phase) -> Readings:
        readings: Readings = getattr(self, phase)
        return readings

    @property
    def steps(self) -> int:
        return sum(self.of(phase).steps for phase in ALL_PHASES)


ALL_PHASES: tuple[Phase, ...] = get_args(Phase)


class JobEnded(Exception):
    """A job that runs ends before it is complete: it was cancelled, or its deadline has passed."""

    def __init__(self, kind: OutcomeKind) -> None:
        super().__init__(kind)
        self.kind = kind


class JobWatch:
    """Asked between two steps of a job whether it is to go on: before `due_ns` there is no need to ask."""

    def __init__(self, inbox: Inbox | LocalInbox) -> None:
        self._inbox = inbox
        self._poll_ns = self.due_ns = 0

    def check(self, job: Job, now_ns: int) -> None:
        """Raise JobEnded where the deadline has passed or the job is cancelled."""
        if now_ns > job.deadline_ns:
            raise JobEnded("timeout")
        if now_ns >= self._poll_ns:
            self._poll_ns = now_ns + POLL_NS
            self._inbox.receive()
        if self._inbox.is_cancelled(job):
            raise JobEnded("cancelled")
        self.due_ns = min(self._poll_ns, job.deadline_ns + 1)


class JobWork(Protocol):
    """Runs the jobs of a workload, one at a time."""

    def run(
        self, job: Job, steps: Mapping[tuple[Phase, int], AnyStep], result: JobResult, meter: Meter
    ) -> None:
        """Run `job` with the steps of its mode, recording everything in `result` as it happens."""

    def lead(self, job: Job) -> Job:
        """What is run before `job`, which is sampled."""

    def warm_up_jobs(self, mode: str) -> Iterator[Job]:
        """What is run before the first job of a client."""

    def sizes(self, result: JobResult) -> dict[Phase, int]:
        """The `step_size` of a job's steps, where they have several."""
