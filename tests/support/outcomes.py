"""What an engine says of itself, of its steps and of a request, with the numbers that a test gives."""

from __future__ import annotations

from typing import Any

from service.records import (
    EngineStatus,
    Job,
    Outcome,
    Output,
    Phase,
    PhaseTimings,
    SampleCounts,
    StepSplit,
    Timings,
)

JOB = Job(id="a", mode="eager", prompts=["x"], max_new_tokens=4, sent_ns=1_000, deadline_ns=10**12)

ENGINE = EngineStatus(
    pid=1, model="tiny", parameters=1, layers=1, width=8, context=64, prefill_chunk=64, batch_buckets=[1, 4],
    model_hash="0", device="cpu", device_name="fake", dtype="float32", torch="none", cuda=None, threads=1,
    cpus=[0], modes=["eager", "no_grad", "inference_mode", "compiled"],
)  # fmt: skip


def split(
    share: float, counts: SampleCounts, batch: int, phase: Phase = "decode", spread: float = 0.1
) -> StepSplit:
    """Of a step of 1 ms: dispatch is this `share` of it, or a `spread` more or less, by so many samples."""
    ends = {"low": share - spread, "high": share + spread, "step_seconds": 1e-3}
    return StepSplit(phase=phase, batch=batch, dispatch_share=share, newest=counts, all=counts, **ends)


def phase(dispatch: float | None, kernel: float | None, **known: Any) -> PhaseTimings:
    """Of one step of 10 ms, unless that is among what is `known`."""
    rest = {"steps": 1, "wall_seconds": 0.01, "device_span_seconds": None, "sync_wait_seconds": None}
    return PhaseTimings(dispatch_seconds=dispatch, kernel_seconds=kernel, **{**rest, **known})


def outcome(
    prefill: PhaseTimings,
    decode: PhaseTimings,
    *,
    mode: str = "eager",
    batch_size: int = 1,
    batch_bucket: int = 4,
    **known: Any,
) -> Outcome:
    """One that ended well; what is `known` is of its timings."""
    rest = {
        "queue_seconds": 0.0, "tokenise_seconds": 0.0, "involuntary_switches": 7, "dispatch_source": None,
        "kernel_source": None, "taken_ns": 2_000, "first_token_ns": 3_000, "done_ns": 4_000,
    }  # fmt: skip
    return Outcome(
        id=JOB.id, mode=mode, effective=mode, reason=None, kind="ok", batch_size=batch_size,
        batch_bucket=batch_bucket, timings=Timings(prefill=prefill, decode=decode, **{**rest, **known}),
        outputs=[Output(text="", token_ids=list(range(4)), finish_reason="length")],
    )  # fmt: skip
