"""Where one request's time went, in parts that add up to the whole: for its answer and for the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, cast

from typing_extensions import TypedDict

from service.front.schemas import fields_of
from service.records import Job, Outcome, PhaseTimings, Source, Timings
from service.workloads import of_job

PHASE_FIELDS = tuple(name for name in PhaseTimings.__struct_fields__ if not name.endswith("_steps_seconds"))
"""The sums of a phase; its single steps are for the metrics only."""

_phase_values = attrgetter(*PHASE_FIELDS)


@fields_of(PhaseTimings, PHASE_FIELDS)
class PhaseBody:
    """Sums over the steps of one phase; null: this device cannot measure it.

    What the engine does between steps is in `period_seconds`, and in no other number of a phase.
    """


class Sources(TypedDict):
    """How dispatch and kernel were found; null: not at all.

    "sampled" (on a CPU): dispatch is the host's share of samples of the engine's thread, of the steps' wall
    time, and kernel the rest. `steps` are "shared" where the service merged this request with others:
    dispatch and kernel are then those of the whole of every step that it ran in, and belong to the others as
    well.
    """

    dispatch: Source | None
    kernel: Source | None
    steps: Literal["own", "shared"]


@dataclass(slots=True)
class RequestParts:
    """What requests of any workload have in common, as `TimingsBody` describes it."""

    queue_seconds: float
    dispatch_seconds: float | None
    device_span_seconds: float | None
    kernel_seconds: float | None
    sync_wait_seconds: float | None
    stall_seconds: float | None
    other_seconds: float
    border_seconds: float
    front_seconds: float
    total_seconds: float
    involuntary_switches: int
    effective_batch: float
    sources: Sources
    kernels: int | None
    launches: int | None
    profiled: bool
    sampled: bool


@dataclass(slots=True)
class TimingsBody(RequestParts):
    """From the body parsed until just before the answer is serialised, in parts that add up.

    A request that was `profiled` or `sampled` was slowed down by that, and is in no statistic of latency.
    """

    tokenise_seconds: float
    time_to_first_token_seconds: float | None
    padded_prompt_tokens: int
    attended_tokens: int
    prefill: PhaseBody
    decode: PhaseBody


@dataclass(slots=True)
class ForwardTimings(RequestParts):
    """From the body parsed until just before the answer is serialised, in parts that add up."""

    forward: PhaseBody


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One served request: `parts` as its answer shows them, `engine` as the engine measured them.

    CUDA (where `sync_wait_seconds` is measured): total = queue + dispatch + sync_wait + stall + other, and
    kernels run beside it. CPU: total = queue + dispatch + kernel + stall + other. `other` closes the sum;
    `border_seconds` (to the engine and back), `front_seconds` and, of prompts, `tokenise_seconds` are pieces
    of it.
    """

    job: Job
    outcome: Outcome
    engine: Timings
    parts: RequestParts

    @property
    def slowed(self) -> bool:
        """Whether profiling or sampling slowed it down, so that it is in no statistic of latency."""
        return self.parts.profiled or self.parts.sampled

    @property
    def time_per_output_token_seconds(self) -> float | None:
        """(total - time to first token) / (tokens of the longest completion - 1); None below two tokens."""
        longest = max((output.completion_tokens for output in self.outcome.outputs), default=0)
        first_seconds = part_of(self.parts, "time_to_first_token_seconds")
        if longest < 2 or first_seconds is None:
            return None
        return (self.parts.total_seconds - first_seconds) / (longest - 1)

    @property
    def compared_seconds(self) -> float:
        """What modes are compared by: the request without its queue; of a module its calls alone.

        A user's program calls its module without HTTP, which would take most of the time of a short call.
        """
        if self.calls_seconds is None:
            return self.parts.total_seconds - self.parts.queue_seconds
        return self.calls_seconds

    @property
    def calls_seconds(self) -> float | None:
        """Of a module's calls, as `PhaseTimings` has it; None where instrumentation is off."""
        return None if self.job.forward is None else self.engine.forward.calls_seconds


def add_up(
    job: Job, outcome: Outcome, received_ns: int, outcome_ns: int, handed_over_ns: int
) -> RequestTiming:
    """The timing of a job that ran: `received_ns` body parsed, `outcome_ns` the outcome was back here.

    The total ends at `handed_over_ns`, before the answer that contains it is serialised.
    """
    timings = outcome.timings
    if timings is None:
        raise ValueError(f"job {job.id} ended as '{outcome.kind}' without timings")
    workload = of_job(job)
    by_phase: list[PhaseTimings] = [getattr(timings, name) for name in workload.phases]
    phases = [phase for phase in by_phase if phase.steps]
    dispatch = known_sum([phase.dispatch_seconds for phase in phases])
    kernel = known_sum([phase.kernel_seconds for phase in phases])
    sync_wait = known_sum([phase.sync_wait_seconds for phase in phases])
    total = (handed_over_ns - received_ns) / 1e9
    beside = kernel if sync_wait is None else sync_wait
    to_engine = (timings.taken_ns - job.sent_ns) / 1e9 - timings.queue_seconds
    first_ns = timings.first_token_ns
    shared = timings.shared
    stall = None if shared is None else shared.stall_seconds
    own_steps = shared is None or shared.alone
    common: dict[str, Any] = {
        "queue_seconds": timings.queue_seconds,
        "dispatch_seconds": dispatch,
        "device_span_seconds": known_sum([phase.device_span_seconds for phase in phases]),
        "kernel_seconds": kernel,
        "sync_wait_seconds": sync_wait,
        "stall_seconds": stall,
        "other_seconds": total - timings.queue_seconds - (dispatch or 0.0) - (beside or 0.0) - (stall or 0.0),
        "border_seconds": to_engine + (outcome_ns - timings.done_ns) / 1e9,
        "front_seconds": (job.sent_ns - received_ns + handed_over_ns - outcome_ns) / 1e9,
        "total_seconds": total,
        "involuntary_switches": timings.involuntary_switches,
        "effective_batch": float(outcome.batch_size) if shared is None else shared.rows,
        "sources": {
            "dispatch": timings.dispatch_source,
            "kernel": timings.kernel_source,
            "steps": "own" if own_steps else "shared",
        },
        "kernels": outcome.kernels,
        "launches": outcome.launches,
        "profiled": outcome.profile is not None,
        "sampled": outcome.sampled,
    }
    if not workload.tokens:
        parts: RequestParts = ForwardTimings(**common, forward=_phase_body(timings.forward))
        return RequestTiming(job, outcome, timings, parts)
    parts = TimingsBody(
        **common,
        tokenise_seconds=timings.tokenise_seconds,
        time_to_first_token_seconds=None if first_ns is None else (first_ns - received_ns) / 1e9,
        padded_prompt_tokens=timings.padded_prompt_tokens,
        attended_tokens=timings.attended_tokens,
        prefill=_phase_body(timings.prefill),
        decode=_phase_body(timings.decode),
    )
    return RequestTiming(job, outcome, timings, parts)


def part_of(parts: RequestParts, name: str) -> float | None:
    """The part `name`; None where it was not measured, or requests of this workload have no such part."""
    found: float | None = getattr(parts, name, None)
    return found


def _phase_body(phase: PhaseTimings) -> PhaseBody:
    return cast(PhaseBody, dict(zip(PHASE_FIELDS, _phase_values(phase), strict=True)))


def known_sum(values: list[float | None]) -> float | None:
    """The sum over the phases that ran; None where one of them was not measured, or none ran."""
    measured = [value for value in values if value is not None]
    return sum(measured) if measured and len(measured) == len(values) else None
