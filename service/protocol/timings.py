"""What the engine measured of one job, as it is sent to the front: durations in seconds.

Instants (`*_ns`) are those of `service.protocol.messages`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Source = Literal["measured", "sampled", "profiled"]

SamplesOf = Literal["request", "traffic"]
"""A job's own steps; or the newest steps of its mode, phase and batch bucket."""


class PhaseTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the steps of one phase. None: not measurable on this device, or not known yet.

    `wall` and `dispatch` include the operators that the engine issues beside the step: sampling after it, and
    on CUDA the copies that feed it. `period` is the whole time of the phase: from the beginning of its first
    call to that of the next phase's first call, or, for the last phase, to the end of its last fetch and of
    the bookkeeping after it. So period less wall is what the engine does between steps. `device_span` is the
    device's clock from before each call to its last work, idle time included: see `step.meters.Readings`.
    On a CPU dispatch is the host's share of samples of the engine's thread, of a step's wall time, and
    `dispatch_low_seconds` and `dispatch_high_seconds` are its interval. The numbers of samples are given by
    their class, and `samples_of` says whose steps they were taken in. None: there are none. `minor_faults`
    are page faults of the engine's thread. `dispatch_steps_seconds` holds one value per step where each
    step's dispatch is measured (CUDA), else is empty; `device_span_steps_seconds` and `period_steps_seconds`
    likewise.
    """

    steps: int
    wall_seconds: float | None
    dispatch_seconds: float | None
    device_span_seconds: float | None
    kernel_seconds: float | None
    sync_wait_seconds: float | None
    dispatch_low_seconds: float | None = None
    dispatch_high_seconds: float | None = None
    kernel_samples: int | None = None
    host_samples: int | None = None
    system_samples: int | None = None
    unclassified_samples: int | None = None
    samples_of: SamplesOf | None = None
    minor_faults: int = 0
    period_seconds: float | None = None
    dispatch_steps_seconds: list[float] = []
    device_span_steps_seconds: list[float] = []
    period_steps_seconds: list[float] = []


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one phase and one batch bucket. `rows`: sequences of requests in them, added up over the
    steps; the rest of each bucket was padding.
    """

    phase: Literal["prefill", "decode"]
    batch: int
    rows: int
    timings: PhaseTimings


class SharedWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a job that ran in a batch with others says of it.

    `stall_seconds`: after its prefill, it stood still while the engine prefilled prompts of others. `rows`:
    the mean number of sequences per step that the job ran with, its own included. `alone`: no step had
    sequences of another job, and none stalled it. A step belongs to all jobs in it, and is counted by one:
    `counted` are the steps that this one counts in metrics, `counted_switches` the involuntary switches.
    """

    stall_seconds: float
    rows: float
    alone: bool
    counted: list[StepGroup]
    counted_switches: int


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine measured of one job.

    `queue_seconds` is the time the job waited while the engine was busy with something else, or for others to
    be merged with; transport between the processes is not queue, it is part of `other`.
    `padded_prompt_tokens` are the tokens per row that prefill computed, `attended_tokens` the cache positions
    that attention read in the last decode step. `shared` is there where jobs are merged: the phases then
    have the whole of each step that the job ran in, whoever else was in it.
    """

    queue_seconds: float
    prefill: PhaseTimings
    decode: PhaseTimings
    tokenise_seconds: float
    involuntary_switches: int
    padded_prompt_tokens: int = 0
    attended_tokens: int = 0
    dispatch_source: Source | None
    kernel_source: Source | None
    taken_ns: int
    first_token_ns: int | None
    done_ns: int
    shared: SharedWork | None = None


class StepProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Per step of one phase, over its profiled steps. None: there is no such thing on this device.

    `operators` are the calls that a step makes into the dispatcher; `launches` are launch calls, of which a
    graph replay is one. `idle_seconds` are gaps between the device's work within a step, the two waits their
    cause, where it is known: not while the call that replays a graph has not returned. `kernel_steps` of the
    steps have known kernels: what is given of kernels is the mean over these.
    """

    phase: Literal["prefill", "decode"]
    steps: int
    operators: float
    copies: float
    kernels: float | None = None
    kernel_steps: int = 0
    launches: float | None = None
    graph_launches: float | None = None
    kernel_seconds: float | None = None
    idle_seconds: float | None = None
    host_wait_seconds: float | None = None
    kernel_wait_seconds: float | None = None
