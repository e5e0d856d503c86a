"""`GET /v1/modes`: every configured mode and its costs; `POST /v1/floors`: their floors anew."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from service.front.api.answers import reply
from service.front.api.openapi import GENERATION_ERRORS, POST_ERRORS, link
from service.front.api.state import state_of
from service.front.auto_mode import AutoMode
from service.front.machine import machine
from service.front.schemas.modes import AutoBody, FloorSamplesBody, FloorsAnswer, ModeBody, ModesAnswer
from service.protocol.modes import MODES
from service.protocol.status import ModeStatus

router = APIRouter(tags=["modes"])


@router.get(
    "/modes", responses={200: {"model": ModesAnswer, "links": link("generate", mode="/modes/0/mode")}}
)
async def modes(request: Request) -> Response:
    """State, requested and effective form with the reason, warm-up, dispatch floors, parity."""
    state = state_of(request)
    client = state.client
    answer: ModesAnswer = {
        "modes": [_mode_body(name, client.modes.get(name)) for name in client.configured],
        "auto": _auto_body(state.auto),
        "engine": None if client.engine is None else msgspec.to_builtins(client.engine),
        # In a thread: the first call starts programs, and the event loop serves requests.
        "service": await asyncio.to_thread(machine, state.settings.commit),
    }
    return reply(answer)


@router.post("/floors", responses={200: {"model": FloorsAnswer}, **POST_ERRORS, 503: GENERATION_ERRORS[503]})
async def take_floors(request: Request) -> Response:
    """Take the dispatch floors of all modes anew, once earlier requests are done; requests wait meanwhile.

    For a measurement that wants them settled before and after it, with their samples.
    """
    found = await state_of(request).client.calibrate()
    floors = [
        msgspec.convert(
            {**msgspec.to_builtins(one.floor), "mode": one.mode, "samples_seconds": one.samples_seconds},
            FloorSamplesBody,
        )
        for one in found
    ]
    answer: FloorsAnswer = {"floors": floors}
    return reply(answer)


def _auto_body(auto: AutoMode) -> AutoBody:
    return {
        "default": auto.default,
        "sweep": None if auto.advice is None else auto.advice.name,
        "unused": auto.unused,
        "batches": [
            {"batch_bucket": bucket, "mode": own.mode, "source": own.source, "reason": own.reason}
            for bucket, own in auto.advised.items()
        ],
    }


def _mode_body(name: str, status: ModeStatus | None) -> ModeBody:
    """One mode; before its first status only its row in the ladder is known."""
    return {
        "mode": name,
        "removes": MODES[name].removes,
        "state": status.state if status else "cold",
        "requested": name,
        "effective": status.effective if status else None,
        "reason": status.reason if status else None,
        "detail": status.detail if status else None,
        "cache": status.cache if status else None,
        "warmup_seconds": status.warmup_seconds if status else None,
        "compile_seconds": status.compile_seconds if status else [],
        "compilations": msgspec.to_builtins(status.compilations) if status else [],
        "graph_breaks": status.graph_breaks if status else 0,
        "recompiles": status.recompiles if status else 0,
        "resident_bytes": status.resident_bytes if status else None,
        "dispatch_floors": msgspec.to_builtins(status.floors) if status else [],
        "parity": msgspec.to_builtins(status.parity) if status and status.parity else None,
        "device_times": msgspec.to_builtins(status.device_times) if status else [],
        "kernel_times": msgspec.to_builtins(status.kernel_times) if status else [],
        "profiler_cost": msgspec.to_builtins(status.profiler_cost) if status else None,
    }
