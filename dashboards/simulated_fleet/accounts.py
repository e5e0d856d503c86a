"""What a front is told of its engine and its requests, made up: their form counts, no value is measured."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from service.front.request_timing import RequestTiming, add_up
from service.protocol.device_times import DeviceTime, KernelTime, ProfilerCost
from service.protocol.messages import Job, Outcome, Output, Phase
from service.protocol.modes import MODES
from service.protocol.splits import SampleCounts, StepSplit
from service.protocol.status import EngineStatus, ModeStatus, Parity
from service.protocol.timings import PhaseTimings, StepProfile, Timings

PHASES: tuple[Phase, ...] = ("prefill", "decode")
DECODED = 31
"""Decode steps of a request of 32 tokens."""

SIZES = {f"{kind}_{stat}": 1 << 30 for kind in ("allocated", "reserved", "active", "inactive_split")
         for stat in ("current", "peak")}  # fmt: skip


def engine(device: str, modes: Sequence[str], batches: Sequence[int]) -> EngineStatus:
    """A warm engine on `device`, "cpu" or "cuda"."""
    return EngineStatus(
        pid=1,
        model="tiny",
        parameters=3_000_000,
        layers=6,
        width=192,
        context=512,
        prefill_chunk=64,
        batch_buckets=[*batches],
        model_hash="0",
        device=device,
        device_name="made up",
        dtype="float32",
        torch="0",
        cuda="0" if device == "cuda" else None,
        threads=1,
        cpus=[0],
        modes=[*modes],
        memory={**SIZES, "alloc_retries": 0, "ooms": 0} if device == "cuda" else None,
        warm=True,
    )


def ready(mode: str, device: str, batches: Sequence[int]) -> ModeStatus:
    """A mode with all that its device learns of it at warm-up."""
    cuda = device == "cuda"
    places = [(phase, batch) for phase in PHASES for batch in batches]
    parity = Parity(
        passed=True,
        max_abs_logit_difference=1e-6,
        tolerance=1e-4,
        positions=9,
        differing_tokens=0,
        near_ties=0,
    )
    return ModeStatus(
        mode=mode,
        removes="",
        state="ready",
        effective=MODES[mode].effect(device).name,
        warmup_seconds=1.0,
        splits=[_split(phase, batch) for phase, batch in places if not cuda],
        parity=parity,
        device_times=[_device_time(phase, batch) for phase, batch in places if cuda],
        kernel_times=[_kernel_time(phase, batch) for phase, batch in places if cuda],
        profiler_cost=ProfilerCost(
            ratio=1.0, low=0.9, high=1.1, rounds=8, before_seconds=1e-3, after_seconds=1e-3
        )
        if cuda
        else None,
    )


def request(mode: str, device: str, batch: int, random: Random, profiled: bool = False) -> RequestTiming:
    """A request of that batch that ended well, its steps of random length."""
    phases = {phase: _phase(1 if phase == "prefill" else DECODED, device, random) for phase in PHASES}
    engine_ns = round(sum(phase.period_seconds or 0.0 for phase in phases.values()) * 1e9)
    job = Job(id="0", mode=mode, prompts=["x"] * batch, max_new_tokens=DECODED + 1, sent_ns=0, deadline_ns=0)
    timings = Timings(
        queue_seconds=random.expovariate(1000.0),
        prefill=phases["prefill"],
        decode=phases["decode"],
        tokenise_seconds=1e-4,
        involuntary_switches=random.randrange(2),
        dispatch_source="measured" if device == "cuda" else "sampled",
        kernel_source="profiled" if device == "cuda" else "sampled",
        taken_ns=10**8,
        first_token_ns=2 * 10**8,
        done_ns=10**8 + engine_ns,
    )
    outcome = Outcome(
        id="0",
        mode=mode,
        effective=MODES[mode].effect(device).name,
        reason=None,
        kind="ok",
        batch_size=batch,
        batch_bucket=batch,
        prompt_tokens=8 * batch,
        outputs=[Output(text="", token_ids=[0] * (DECODED + 1), finish_reason="length")] * batch,
        timings=timings,
        profile=[_profile(phase, device) for phase in PHASES] if profiled else None,
    )
    return add_up(job, outcome, 0, 2 * 10**8 + engine_ns, 3 * 10**8 + engine_ns)


def _phase(steps: int, device: str, random: Random) -> PhaseTimings:
    dispatch, kernel = random.uniform(2e-4, 2e-3), random.uniform(2e-4, 2e-3)
    cuda = device == "cuda"
    wall = dispatch + kernel
    return PhaseTimings(
        steps=steps,
        wall_seconds=steps * wall,
        dispatch_seconds=steps * dispatch,
        device_span_seconds=steps * kernel if cuda else None,
        kernel_seconds=steps * kernel,
        sync_wait_seconds=steps * kernel if cuda else None,
        period_seconds=steps * wall,
        dispatch_steps_seconds=[dispatch] * steps if cuda else [],
        device_span_steps_seconds=[kernel] * steps if cuda else [],
        period_steps_seconds=[wall] * steps if cuda else [],
    )


def _profile(phase: Phase, device: str) -> StepProfile:
    count = 60.0 if device == "cuda" else None
    return StepProfile(phase=phase, steps=1, operators=180.0, copies=0.0, kernels=count, launches=count)


def _split(phase: Phase, batch: int) -> StepSplit:
    counts = SampleCounts(kernel=60, host=40, system=1)
    return StepSplit(
        phase=phase,
        batch=batch,
        dispatch_share=0.4,
        low=0.3,
        high=0.5,
        step_seconds=1e-3,
        newest=counts,
        all=counts,
    )


def _device_time(phase: Phase, batch: int) -> DeviceTime:
    return DeviceTime(
        phase=phase,
        batch=batch,
        seconds=1e-3,
        low=1e-3,
        high=1e-3,
        samples=11,
        queued=16,
        upper_bound=False,
    )


def _kernel_time(phase: Phase, batch: int) -> KernelTime:
    return KernelTime(phase=phase, batch=batch, seconds=1e-3, low=1e-3, high=1e-3, samples=8)
