"""`POST /v1/modes/{mode}/generate`: prompts in one mode; `POST /v1/compare`: in several, paired by round."""

from __future__ import annotations

import random
import secrets
from operator import mul
from statistics import median
from time import perf_counter_ns

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from service.front.advice import EAGER
from service.front.errors import BadRequest, CannotSample, ModeNotReady
from service.front.request_timing import RequestTiming, known_sum
from service.front.routes.answers import (
    EVENT_STREAM,
    GENERATION_ERRORS,
    GenerateAnswer,
    GenerateAnswers,
    Responses,
    Speedup,
    body_schema,
    reply,
    speedup,
)
from service.front.routes.body import BodyReader
from service.front.routes.engine_call import EngineCall, check_limits, new_job, respond
from service.front.routes.state import AppState, state_of
from service.front.schemas import CompareBody, GenerateBody
from service.modes import AUTO
from service.records import PhaseTimings
from service.statistics import choice
from service.statistics.choice import BASELINE as PLAIN

router = APIRouter(tags=["generation"])
_generate_body = BodyReader(GenerateBody, "prompts")

RESPONSES: Responses = {200: {"model": GenerateAnswer, "content": {EVENT_STREAM: {}}}, **GENERATION_ERRORS}


# Before the other route, which would take `auto` for a mode; entered directly, both are `generate`.
@router.post(
    f"/modes/{AUTO}/generate",
    operation_id="generate_auto",
    openapi_extra=body_schema(GenerateBody),
    responses=RESPONSES,
)
async def generate_auto(request: Request) -> Response:
    """Generate in the mode that is advised for the batch size, which the answer names with the reason."""
    return await generate(AUTO, request)


@router.post(
    "/modes/{mode}/generate",
    operation_id="generate",
    openapi_extra=body_schema(GenerateBody),
    responses=RESPONSES,
)
async def generate(mode: str, request: Request) -> Response:
    """Generate in one mode, and report where the time went. The clock starts when the body is parsed."""
    state = state_of(request)
    state.check_mode(mode, beside=(AUTO,))
    body = await _generate_body.read(request, state)
    received_ns = perf_counter_ns()
    check_limits(state, body.prompts, body.max_new_tokens)
    if body.sample:
        _check_sample(state, body)
    request_id: str = request.state.request_id
    asked = state.asked(mode, len(body.prompts))
    request.state.mode = asked.mode
    job = new_job(state, request_id, received_ns, mode=asked.mode, **dict(body))
    answers = GenerateAnswers(state, request_id, asked)
    return await respond(state, request, job, received_ns, answers)


def _check_sample(state: AppState, body: GenerateBody) -> None:
    engine = state.client.engine
    if engine is not None and engine.no_samples is not None:
        raise CannotSample(f"sample: leave it out; {engine.no_samples}", param="sample")
    if body.profile:
        raise BadRequest("sample: a request is profiled or sampled, not both", param="sample")


class ModeResult(TypedDict):
    """One mode of a comparison: medians over its rounds, waiting behind other requests left out.

    On a CPU dispatch and kernel are those medians by the shares of one more run, sampled faster.
    """

    mode: str
    effective: str
    median_seconds: float
    dispatch_seconds: float | None
    dispatch_low_seconds: float | None
    dispatch_high_seconds: float | None
    kernel_seconds: float | None
    samples: int | None
    speedup: Speedup | None
    speedup_without_compiler: Speedup | None
    text_equal: bool | None


class CompareAnswer(TypedDict):
    """Answer of compare."""

    batch_size: int
    results: list[ModeResult]


_compare_body = BodyReader(CompareBody, "prompts")


@router.post(
    "/compare",
    openapi_extra=body_schema(CompareBody),
    responses={200: {"model": CompareAnswer}, **GENERATION_ERRORS},
)
async def compare(request: Request) -> Response:
    """Run every mode once per round, in a fresh order each round, one after another.

    On a CPU each runs once more before that, sampled faster: its steps say how those of the others split.
    """
    state = state_of(request)
    body = await _compare_body.read(request, state)
    received_ns = perf_counter_ns()
    modes = _modes(state, body)
    check_limits(state, body.prompts, body.max_new_tokens)
    runs: dict[str, list[RequestTiming]] = {mode: [] for mode in modes}
    # One seed for all, or sampled texts could not be compared.
    seed = secrets.randbelow(2**63) if body.seed is None and body.temperature > 0 else body.seed
    fields = {**body.model_dump(exclude={"modes", "repeats"}), "seed": seed, "alone": True}
    sampled: dict[str, RequestTiming] = {}
    engine = state.client.engine
    async with EngineCall(state, request.scope, request.receive) as call:

        async def run(mode: str, number: int | str, sample: bool = False) -> RequestTiming:
            name = f"{request.state.request_id}.{number}.{mode}"
            job = new_job(state, name, received_ns, mode=mode, sample=sample, **fields)
            timing = await call.result(call.submit(job), job.sent_ns)
            state.observe_soon(timing)
            return timing

        if engine is not None and engine.no_samples is None:
            for mode in modes:
                sampled[mode] = await run(mode, "sample", sample=True)
        for number in range(body.repeats):
            for mode in random.sample(modes, len(modes)):
                runs[mode].append(await run(mode, number))
    state.observe_all()
    answer: CompareAnswer = {
        "batch_size": len(body.prompts),
        "results": [_result(mode, runs, sampled.get(mode)) for mode in modes],
    }
    return reply(answer)


def _modes(state: AppState, body: CompareBody) -> list[str]:
    if body.modes is None:
        ready = state.client.ready_modes()
        if not ready:
            raise ModeNotReady("no mode is ready yet; /v1/modes shows where each one stands")
        return ready
    for mode in body.modes:
        state.check_mode(mode)
    if len(set(body.modes)) < len(body.modes):
        raise BadRequest("modes: each mode may stand there once", param="modes")
    return body.modes


def _result(
    mode: str, runs_by_mode: dict[str, list[RequestTiming]], sampled: RequestTiming | None
) -> ModeResult:
    runs, baseline = runs_by_mode[mode], runs_by_mode.get(EAGER)
    shares = None if sampled is None else _shares(sampled)
    dispatch, low, high, kernel = _measured(runs) if shares is None else _by_shares(runs, shares)
    counted = None
    if sampled is not None and shares is not None:
        counted = sum((each.kernel_samples or 0) + (each.host_samples or 0) for each in _phases(sampled))
    return {
        "mode": mode,
        "effective": runs[-1].outcome.effective,
        "median_seconds": median(_served_seconds(runs)),
        "dispatch_seconds": dispatch,
        "dispatch_low_seconds": low,
        "dispatch_high_seconds": high,
        "kernel_seconds": kernel,
        "samples": counted,
        "speedup": _speedup(mode, EAGER, runs_by_mode),
        "speedup_without_compiler": _speedup(mode, PLAIN, runs_by_mode),
        "text_equal": _texts(runs) == _texts(baseline) if baseline else None,
    }


def _measured(runs: list[RequestTiming]) -> list[float | None]:
    """Median dispatch of a run with its ends, and kernel, as each run has them; None: not known."""
    fields = ("dispatch_seconds", "dispatch_low_seconds", "dispatch_high_seconds", "kernel_seconds")
    ran = [[phase for phase in _phases(run) if phase.steps] for run in runs]
    of_runs = ([known_sum([getattr(phase, name) for phase in phases]) for phases in ran] for name in fields)
    return [_median(values) for values in of_runs]


def _by_shares(runs: list[RequestTiming], shares: list[tuple[float, float, float]]) -> list[float]:
    """The same by the shares of dispatch in the two phases, and their ends."""
    walls = [[phase.wall_seconds or 0.0 for phase in _phases(run)] for run in runs]
    ends = [[sum(map(mul, of_run, share)) for of_run in walls] for share in zip(*shares, strict=True)]
    kernel = [sum(of_run) - dispatch for of_run, dispatch in zip(walls, ends[0], strict=True)]
    return [median(seconds) for seconds in (*ends, kernel)]


def _shares(sampled: RequestTiming) -> list[tuple[float, float, float]] | None:
    """Of dispatch in each phase, with its ends; None where one that ran has no sample."""
    found = []
    for phase in _phases(sampled):
        if phase.steps and not (phase.kernel_samples or phase.host_samples):
            return None
        ends = (phase.dispatch_seconds, phase.dispatch_low_seconds, phase.dispatch_high_seconds)
        wall = phase.wall_seconds or 1.0  # of a phase without steps, whose dispatch is 0
        value, low, high = ((seconds or 0.0) / wall for seconds in ends)
        found.append((value, low, high))
    return found


def _phases(run: RequestTiming) -> tuple[PhaseTimings, PhaseTimings]:
    return run.engine.prefill, run.engine.decode


def _speedup(mode: str, vs: str, runs: dict[str, list[RequestTiming]]) -> Speedup | None:
    """Of `mode` over `vs`, paired by round; None for `vs` itself, or where it did not run."""
    if mode == vs or vs not in runs:
        return None
    baseline, own = (dict(enumerate(_served_seconds(runs[name]))) for name in (vs, mode))
    return speedup(choice.compare(baseline, own).speedup, vs)


def _served_seconds(runs: list[RequestTiming]) -> list[float]:
    return [run.parts.total_seconds - run.parts.queue_seconds for run in runs]


def _median(values: list[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None


def _texts(runs: list[RequestTiming]) -> list[list[str]]:
    return [[output.text for output in run.outcome.outputs] for run in runs]
