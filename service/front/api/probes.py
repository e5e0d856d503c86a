"""`/v1/probes`: the live experiments."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from service.front.api.answers import reply
from service.front.api.openapi import STUDY_ERRORS
from service.front.api.state import state_of
from service.front.api.studies import run_study, spent
from service.front.errors import NotFound
from service.front.schemas.probes import ProbeAnswer, ProbesAnswer
from service.protocol.probes import NOT_ON_CPU, PROBES

router = APIRouter(tags=["anatomy"])

NAMES = Path(json_schema_extra={"enum": [*PROBES], "examples": ["hidden-copy"]})


@router.get("/probes", responses={200: {"model": ProbesAnswer}})
async def probes() -> Response:
    """The probes by name, with what each teaches."""
    answer: ProbesAnswer = {
        "probes": [
            {"name": name, "teaches": teaches, "not_on_cpu": NOT_ON_CPU.get(name)}
            for name, teaches in PROBES.items()
        ]
    }
    return reply(answer)


@router.post("/probes/{name}", responses={200: {"model": ProbeAnswer}, **STUDY_ERRORS})
async def probe(name: Annotated[str, NAMES], request: Request) -> Response:
    """One pitfall, live: a step without and with it, the counter that moved, the line to blame, the cure."""
    if name not in PROBES:
        raise NotFound(f"no probe '{name[:64]}'; try one of {', '.join(PROBES)}", param="name")
    found = await run_study(state_of(request), request.receive, "probes", {"name": name})
    return Response(found.body, headers={"Server-Timing": spent(found)}, media_type="application/json")
