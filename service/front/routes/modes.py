"""`GET /v1/modes`: every configured mode and its costs; `GET /v1/advice?batch_size=N`: the mode to use."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, cast

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from service.front.advice import AutoMode, headroom
from service.front.errors import BadRequest
from service.front.machine import machine
from service.front.routes.answers import ParityBody, Speedup, error, reply, speedup
from service.front.routes.state import state_of
from service.front.schemas import STUDY_BODIES, fields_of
from service.modes import MODES
from service.records import (
    Cache,
    Compilation,
    DeviceTime,
    KernelTime,
    ModeStatus,
    Phase,
    ProfilerCost,
    Readiness,
    SampleCounts,
    StepSplit,
)
from service.study_names import not_of_modules
from service.workloads import WorkloadName


@fields_of(SampleCounts)
class SamplesBody:
    """Samples of the engine's thread: in a kernel, in the host's code, in the system, in code of no rule."""


@fields_of(Compilation)
class CompilationBody:
    """The first call of one compiled callable; `cold_seconds` is null until an empty cache was seen."""


@fields_of(DeviceTime)
class DeviceTimeBody:
    """Seconds per step of calls queued back to back on a GPU, without the profiler."""


@fields_of(KernelTime)
class KernelTimeBody:
    """Kernel seconds of one step on a GPU, by the profiler; no interval where the samples are too few."""


@fields_of(ProfilerCost)
class ProfilerCostBody:
    """Dispatch of a decode step after the profiler's first session over before it, on a GPU."""


class SplitBody(TypedDict):
    """A step on a CPU, as its newest samples have it; [`low`, `high`] is the interval of `kernel_share`."""

    phase: Phase
    batch: int
    step_seconds: float
    dispatch_seconds: float
    kernel_seconds: float
    kernel_share: float
    low: float
    high: float
    headroom: float | None
    samples: SamplesBody


class ModeBody(TypedDict):
    """One mode of this instance. On a CPU the last three are empty, on a GPU `splits`; all until known."""

    mode: str
    removes: str
    state: Readiness
    requested: str
    effective: str | None
    reason: str | None
    detail: str | None
    cache: Cache | None
    warmup_seconds: float | None
    compile_seconds: list[float]
    compilations: list[CompilationBody]
    graph_breaks: int
    recompiles: int
    resident_bytes: int | None
    splits: list[SplitBody]
    parity: ParityBody | None
    device_times: list[DeviceTimeBody]
    kernel_times: list[KernelTimeBody]
    profiler_cost: ProfilerCostBody | None


class AutoBatch(TypedDict):
    """The mode that `auto` runs for one batch bucket, where it is ready; `source`: who advises it."""

    batch_bucket: int
    mode: str
    source: Literal["sweep", "live", "default"]
    reason: str


class AutoBody(TypedDict):
    """What `auto` runs: `default` where nothing advises, and while an advised mode is not ready."""

    default: str
    sweep: str | None
    unused: str | None
    batches: list[AutoBatch]


class WorkloadBody(TypedDict):
    """What requests of this instance are made of, and the studies that there are of it."""

    name: WorkloadName
    phases: list[Phase]
    main: Phase
    step: str
    studies: list[str]


class ModesAnswer(TypedDict):
    """Answer of GET /v1/modes; `engine.no_samples` is the reason where no mode has splits."""

    workload: WorkloadBody
    modes: list[ModeBody]
    auto: AutoBody
    engine: dict[str, Any] | None
    service: dict[str, Any]


router = APIRouter()


@router.get("/modes", tags=["modes"], responses={200: {"model": ModesAnswer}})
async def modes(request: Request) -> Response:
    """State, requested and effective form with the reason, warm-up, dispatch and kernel of a step, parity."""
    state = state_of(request)
    client, workload = state.client, state.settings.workload
    studies = [each for each in (*STUDY_BODIES, "probes") if workload.tokens or not not_of_modules(each)]
    answer: ModesAnswer = {
        "workload": {
            "name": workload.name,
            "phases": list(workload.phases),
            "main": workload.main,
            "step": workload.step,
            "studies": studies,
        },
        "modes": [_mode_body(name, client.modes.get(name)) for name in client.configured],
        "auto": _auto_body(state.auto),
        "engine": None if client.engine is None else msgspec.to_builtins(client.engine),
        # In a thread: the first call starts programs, and the event loop serves requests.
        "service": await asyncio.to_thread(machine, state.settings.commit),
    }
    return reply(answer)


def _auto_body(auto: AutoMode) -> AutoBody:
    return {
        "default": auto.default,
        "sweep": None if auto.advice is None else auto.advice.name,
        "unused": auto.unused,
        "batches": [
            cast(AutoBatch, {"batch_bucket": bucket, **msgspec.to_builtins(advised)})
            for bucket, advised in auto.advised.items()
        ],
    }


def _mode_body(name: str, status: ModeStatus | None) -> ModeBody:
    """One mode; before its first status only its row in the ladder is known."""
    removes = MODES[name].removes
    known = status or ModeStatus(mode=name, removes=removes, state="cold", effective="")
    values = {
        **msgspec.to_builtins(known),
        "removes": removes,
        "requested": name,
        "effective": status.effective if status else None,
        "splits": [_split_body(split) for split in known.splits],
    }
    return cast(ModeBody, {field: values[field] for field in ModeBody.__annotations__})


def _split_body(split: StepSplit) -> SplitBody:
    kernel_share = 1 - split.dispatch_share
    return {
        "phase": split.phase,
        "batch": split.batch,
        "step_seconds": split.step_seconds,
        "dispatch_seconds": split.dispatch_share * split.step_seconds,
        "kernel_seconds": kernel_share * split.step_seconds,
        "kernel_share": kernel_share,
        "low": 1 - split.high,
        "high": 1 - split.low,
        "headroom": headroom(kernel_share),
        "samples": msgspec.to_builtins(split.newest),
    }


class AdviceAnswer(TypedDict):
    """The mode to use at a batch size; `bound` is the class of its kernel share: a GPU's term."""

    batch_size: int
    mode: str
    reason: str
    bound: str | None
    device_bound_index: float | None
    crossover_batch: float | None
    state: str
    speedup: Speedup
    samples: int


@router.get(
    "/advice",
    tags=["advice"],
    responses={
        200: {"model": AdviceAnswer},
        **error(409, "Too few measurements; `message` names what to run."),
        **error(422, "The batch size is out of range."),
    },
)
async def advice(request: Request, batch_size: int = 1) -> Response:
    """The best mode for a batch size, with the reason; 409 with what to run where too little is known."""
    state = state_of(request)
    if unknown := [name for name in request.query_params if name != "batch_size"]:
        message = f"{unknown[0][:64]}: there is no such parameter; write batch_size"
        raise BadRequest(message, param="batch_size")
    state.bucket_of(batch_size)
    state.observe_all()
    found = state.statistics.advise(batch_size, state.settings.batch_sizes, state.client.ready_modes())
    answer: AdviceAnswer = {
        "batch_size": batch_size,
        "mode": found.mode,
        "reason": found.reason,
        "bound": found.bound and found.bound.removesuffix("-bound"),
        "device_bound_index": found.index,
        "crossover_batch": found.crossover,
        "state": found.state,
        "speedup": speedup(found.speedup, found.baseline),
        "samples": found.speedup.samples,
    }
    return reply(answer)
