"""`POST /v1/compare`: the same input through several modes, interleaved in rounds, paired with eager."""

from __future__ import annotations

import random
import secrets
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
from service.front.schemas.answers import CompareAnswer, ModeResult, Speedup
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
    """Run every mode once per round, in a fresh order each round, one after another."""
    state = state_of(request)
    body = await _body.read(request, state)
    received_ns = perf_counter_ns()
    modes = _modes(state, body)
    check_limits(state, body)
    runs: dict[str, list[RequestTiming]] = {mode: [] for mode in modes}
    # One seed for all, or sampled texts could not be compared.
    seed = secrets.randbelow(2**63) if body.seed is None and body.temperature > 0 else body.seed
    async with EngineCall(state, request.scope, request.receive) as call:
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
        "results": [_result(mode, runs) for mode in modes],
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


def _result(mode: str, runs_by_mode: dict[str, list[RequestTiming]]) -> ModeResult:
    runs, baseline = runs_by_mode[mode], runs_by_mode.get(BASELINE)
    return {
        "mode": mode,
        "effective": runs[-1].outcome.effective,
        "median_seconds": median(_served_seconds(runs)),
        "dispatch_seconds": _median([run.parts.dispatch_seconds for run in runs]),
        "kernel_seconds": _median([run.parts.kernel_seconds for run in runs]),
        "speedup": _speedup(mode, BASELINE, runs_by_mode),
        "speedup_without_compiler": _speedup(mode, WITHOUT_COMPILER, runs_by_mode),
        "text_equal": _texts(runs) == _texts(baseline) if baseline else None,
    }


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
