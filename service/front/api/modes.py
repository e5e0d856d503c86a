"""`GET /v1/modes`: every configured mode and its costs."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from service.front.advice import headroom
from service.front.api.answers import reply
from service.front.api.openapi import link
from service.front.api.state import state_of
from service.front.auto_mode import AutoMode
from service.front.machine import machine
from service.front.schemas.modes import AutoBody, ModeBody, ModesAnswer, SplitBody
from service.protocol.modes import MODES
from service.protocol.splits import StepSplit
from service.protocol.status import ModeStatus

router = APIRouter(tags=["modes"])


@router.get(
    "/modes", responses={200: {"model": ModesAnswer, "links": link("generate", mode="/modes/0/mode")}}
)
async def modes(request: Request) -> Response:
    """State, requested and effective form with the reason, warm-up, dispatch and kernel of a step, parity."""
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
        "splits": [_split_body(split) for split in status.splits] if status else [],
        "parity": msgspec.to_builtins(status.parity) if status and status.parity else None,
        "device_times": msgspec.to_builtins(status.device_times) if status else [],
        "kernel_times": msgspec.to_builtins(status.kernel_times) if status else [],
        "profiler_cost": msgspec.to_builtins(status.profiler_cost) if status else None,
    }


def _split_body(split: StepSplit) -> SplitBody:
    kernel_share = 1 - split.dispatch_share
    return {
        "phase": split.phase,
        "batch": split.batch,
        "step_seconds": split.step_seconds,
        "dispatch_seconds": split.dispatch_seconds,
        "kernel_seconds": split.kernel_seconds,
        "kernel_share": kernel_share,
        "low": 1 - split.high,
        "high": 1 - split.low,
        "headroom": headroom(kernel_share),
        "samples": msgspec.to_builtins(split.newest),
    }
