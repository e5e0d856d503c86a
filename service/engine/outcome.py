"""A job's result becomes the `Outcome` that is sent to the front: one per job, built here only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

from service.engine.configured_mode import ConfiguredMode
from service.engine.job_result import JobResult
from service.engine.request_profiler import totals
from service.protocol.messages import Job, Outcome
from service.protocol.modes import Mode
from service.protocol.status import ModeStatus
from service.protocol.timings import StepProfile, Timings


def build_outcome(
    job: Job,
    result: JobResult,
    configured: ConfiguredMode | None,
    measured: Callable[[int], Timings],
) -> Outcome:
    """What is answered to `job`; `configured` is None where its mode is not configured.

    `measured` makes its timings, given the instant at which all else is done; not called where it never ran.
    """
    kernels, launches = totals(result)
    outputs = result.rows.outputs() if result.rows else []
    effective: str = job.mode
    reason: str | None = None
    if configured:
        effective, reason = ran_as(configured.mode, configured.status, result.profile)
    return Outcome(
        id=job.id,
        mode=job.mode,
        effective=effective,
        reason=reason,
        kind=result.kind,
        problem=result.problem,
        batch_size=len(job.prompts),
        batch_bucket=result.bucket,
        prompt_tokens=result.prompt_tokens,
        outputs=outputs,
        timings=measured(perf_counter_ns()) if result.bucket else None,
        kernels=kernels,
        launches=launches,
        profile=result.profile,
        sampled=result.sampled,
    )


def ran_as(mode: Mode, status: ModeStatus, profile: Sequence[StepProfile] | None) -> tuple[str, str | None]:
    """The effective mode of a request and the reason for it.

    A profiled request in a mode with graph replay must show one graph launch per decode step.
    """
    if status.effective != mode.cuda.name or not mode.cuda.graph_replay:
        return status.effective, status.reason
    decode = [entry.graph_launches for entry in profile or () if entry.phase == "decode"]
    if any(launches is not None and launches != 1 for launches in decode):
        return mode.cuda.without_replay, "graph_skipped"
    return status.effective, status.reason
