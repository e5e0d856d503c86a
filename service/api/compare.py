"""`POST /v1/compare`: the same input through several modes, interleaved in rounds, paired with eager."""

from __future__ import annotations

import math
import random
import secrets
from statistics import median
from time import perf_counter_ns

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.answer_schemas import CompareAnswer, ModeResult, Speedup
from service.api.answers import reply
from service.api.body import read_body
from service.api.call import Call, check_limits, check_mode
from service.api.generate import ERRORS, body_schema, new_job
from service.api.parts import Parts, parts_of
from service.api.request_id import id_of
from service.border.account import Account
from service.errors import BadRequest, ModeNotReady
from service.schemas import CompareBody
from service.statistics import paired_ratio

BASELINE = "eager"

router = APIRouter(tags=["generation"])


@router.post(
    "/compare",
    openapi_extra=body_schema(CompareBody),
    responses={200: {"model": CompareAnswer}, **ERRORS},
)
async def compare(request: Request) -> Response:
    """Run every mode once per round, in a fresh order each round, one after another."""
    parts = parts_of(request)
    body = await read_body(request, CompareBody, parts.settings.max_body_bytes)
    received_ns = perf_counter_ns()
    modes = _modes(parts, body)
    check_limits(parts, body)
    runs: dict[str, list[Account]] = {mode: [] for mode in modes}
    # One seed for all, or sampled texts could not be compared.
    seed = secrets.randbelow(2**63) if body.seed is None and body.temperature > 0 else body.seed
    async with Call(parts, request.receive) as call:
        for number in range(body.repeats):
            for mode in random.sample(modes, len(modes)):
                job_id = f"{id_of(request.scope)}.{number}.{mode}"
                job = new_job(parts, job_id, mode, body, received_ns, seed)
                account = await call.account(call.submit(job), job.sent_ns)
                parts.observe(account)
                runs[mode].append(account)
    answer: CompareAnswer = {
        "batch_size": len(body.prompts),
        "results": [_result(mode, runs[mode], runs.get(BASELINE)) for mode in modes],
    }
    return reply(answer)


def _modes(parts: Parts, body: CompareBody) -> list[str]:
    if body.modes is None:
        ready = parts.client.ready_modes()
        if not ready:
            raise ModeNotReady("no mode is ready yet; /v1/modes shows where each one stands")
        return ready
    for mode in body.modes:
        check_mode(parts, mode)
    if len(set(body.modes)) < len(body.modes):
        raise BadRequest("modes: each mode may stand there once", param="modes")
    return body.modes


def _result(mode: str, runs: list[Account], baseline: list[Account] | None) -> ModeResult:
    return {
        "mode": mode,
        "effective": runs[-1].outcome.effective,
        "median_seconds": median(_served_seconds(runs)),
        "dispatch_seconds": _median([run.dispatch_seconds for run in runs]),
        "kernel_seconds": _median([run.kernel_seconds for run in runs]),
        "speedup": _speedup(runs, baseline) if mode != BASELINE and baseline else None,
        "text_equal": _texts(runs) == _texts(baseline) if baseline else None,
    }


def _served_seconds(runs: list[Account]) -> list[float]:
    """Durations without the wait behind other requests, which says nothing of a mode."""
    return [run.total_seconds - run.queue_seconds for run in runs]


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _speedup(runs: list[Account], baseline: list[Account]) -> Speedup:
    interval = paired_ratio(_served_seconds(baseline), _served_seconds(runs))
    bounded = interval.low > 0 and math.isfinite(interval.high)
    return {
        "vs": BASELINE,
        "ratio": interval.value,
        "low": interval.low if bounded else None,
        "high": interval.high if bounded else None,
    }


def _texts(runs: list[Account]) -> list[list[str]]:
    return [[output.text for output in run.outcome.outputs] for run in runs]
