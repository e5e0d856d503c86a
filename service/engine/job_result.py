"""What one job produced and what was measured of it, before it becomes an `Outcome`."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.engine.text import Completions
from service.records import OutcomeKind, Problem, StepProfile
from service.step.meters import Readings


class JobError(Exception):
    """A job that cannot run with its arguments; `problem` is sent to the client."""

    def __init__(self, type_: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.problem = Problem(type=type_, message=message, param=param)


@dataclass(slots=True)
class JobResult:
    """Filled in while the job runs, so that a job that ends early keeps what was measured until then.

    `taken_ns`, `first_token_ns` and `ended_ns` (its last step's bookkeeping is done) are instants of
    `perf_counter_ns`, `queue_ns` and `tokenise_ns` durations.
    `bucket` is 0 for a job that did not start. `profile` is there only for a job that ran to its end under
    the profiler. `padded_prompt_tokens` are the tokens per row that prefill computed, `attended_tokens` the
    positions that attention read in the last decode step. `sampled`: being sampled slowed it down, whether or
    not its samples could be kept.
    """

    taken_ns: int = 0
    queue_ns: int = 0
    kind: OutcomeKind = "ok"
    problem: Problem | None = None
    profile: list[StepProfile] | None = None
    bucket: int = 0
    prompt_tokens: int = 0
    padded_prompt_tokens: int = 0
    attended_tokens: int = 0
    rows: Completions | None = None
    prefill: Readings = field(default_factory=Readings)
    decode: Readings = field(default_factory=Readings)
    tokenise_ns: int = 0
    first_token_ns: int | None = None
    ended_ns: int = 0
    involuntary_switches: int = 0
    sampled: bool = False

    def fail(self, problem: Problem, kind: OutcomeKind = "error") -> None:
        """Record why the job failed."""
        self.kind = kind
        self.problem = problem
