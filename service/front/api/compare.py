"""`POST /v1/compare`: the same input through several modes, interleaved in rounds, paired with eager."""

from __future__ import annotations

import random
import secrets
from operator import mul
from statistics import median
from time import perf_counter_ns

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.front.api.answers import BASELINE, WITHOUT_COMPILER, reply, speedup
from service.front.api.body import BodyReader
from service.front.api.call import EngineCall, check_limits, new_job
from service.front.api.openapi import GENERATION_ERRORS, body_schema
from service.front.api.state import AppState, state_of
from service.front.errors import BadRequest, ModeNotReady
from service.front.request_timing import RequestTiming
from service.front.schemas.answers import CompareAnswer, ModeResult, PhaseBody, Speedup
from service.front.schemas.requests import CompareBody
from service.statistics import choice

router = APIRouter(tags=["generation"])
_body = BodyReader(CompareBody, "prompts")


@router.post(
    "/compare",
    openapi_extra=body_schema(CompareBody),
    responses={200: {"model": CompareAnswer}, **GENERATION_ERRORS},
)
async def compare(request: Request) -> Response:
    """Run every mode once per round, in a fresh order each round, one after another.

    On a CPU each runs once more before that, sampled: its steps say how those of the others split.
    """
    state = state_of(request)
    body = await _body.read(request, state)
    received_ns = perf_counter_ns()
    modes = _modes(state, body)
    check_limits(state, body)
    runs: dict[str, list[RequestTiming]] = {mode: [] for mode in modes}
    # One seed for all, or sampled texts could not be compared.
    seed = secrets.randbelow(2**63) if body.seed is None and body.temperature > 0 else body.seed
    async with EngineCall(state, request.scope, request.receive) as call:
        sampled: dict[str, RequestTiming] = {}
        engine = state.client.engine
        if engine is not None and engine.no_request_samples is None:
            for mode in modes:
                job_id = f"{request.state.request_id}.sample.{mode}"
                job = new_job(state, job_id, mode, body, received_ns, seed, sample=True)
                sampled[mode] = await call.run(job, job.sent_ns)
                state.observe_soon(sampled[mode])
        for number in range(body.repeats):
            for mode in random.sample(modes, len(modes)):
                job_id = f"{request.state.request_id}.{number}.{mode}"
                job = new_job(state, job_id, mode, body, received_ns, seed)
                timing = await call.run(job, job.sent_ns)
                state.observe_soon(timing)
                runs[mode].append(timing)
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
    runs, baseline = runs_by_mode[mode], runs_by_mode.get(BASELINE)
    dispatch, kernel = _split(runs, sampled)
    return {
        "mode": mode,
        "effective": runs[-1].outcome.effective,
        "median_seconds": median(_served_seconds(runs)),
        "dispatch_seconds": dispatch,
        "kernel_seconds": kernel,
        "speedup": _speedup(mode, BASELINE, runs_by_mode),
        "speedup_without_compiler": _speedup(mode, WITHOUT_COMPILER, runs_by_mode),
        "text_equal": _texts(runs) == _texts(baseline) if baseline else None,
    }


def _split(runs: list[RequestTiming], sampled: RequestTiming | None) -> tuple[float | None, float | None]:
    """Median dispatch and kernel of the runs: by the shares of the sampled one, where it has some."""
    shares = None if sampled is None else _shares(sampled)
    if shares is None:
        parts = [run.parts for run in runs]
        return _median([part.dispatch_seconds for part in parts]), _median([p.kernel_seconds for p in parts])
    walls = [[phase.wall_seconds or 0.0 for phase in _phases(run)] for run in runs]
    dispatch = [sum(map(mul, of_run, shares)) for of_run in walls]
    return median(dispatch), median(sum(of_run) - own for of_run, own in zip(walls, dispatch, strict=True))


def _shares(sampled: RequestTiming) -> list[float] | None:
    """Of dispatch in each phase; None where one that ran has no sample."""
    found = []
    for phase in _phases(sampled):
        if phase.steps and not (phase.kernel_samples or phase.host_samples):
            return None
        found.append((phase.dispatch_seconds or 0.0) / phase.wall_seconds if phase.wall_seconds else 0.0)
    return found


def _phases(run: RequestTiming) -> tuple[PhaseBody, PhaseBody]:
    return run.parts.prefill, run.parts.decode


def _speedup(mode: str, vs: str, runs: dict[str, list[RequestTiming]]) -> Speedup | None:
    """Of `mode` over `vs`, paired by round; None for `vs` itself, or where it did not run."""
    if mode == vs or vs not in runs:
        return None
    baseline, own = (dict(enumerate(_served_seconds(runs[name]))) for name in (vs, mode))
    return speedup(choice.compare(baseline, own).speedup, vs)


def _served_seconds(runs: list[RequestTiming]) -> list[float]:
    """Durations without the wait behind other requests, which does not depend on the mode."""
    return [run.parts.total_seconds - run.parts.queue_seconds for run in runs]


def _median(values: list[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None


def _texts(runs: list[RequestTiming]) -> list[list[str]]:
    return [[output.text for output in run.outcome.outputs] for run in runs]
