"""`POST /v1/modes/{mode}/forward`: calls of the served module in one mode; `POST /v1/compare`: in several."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from safetensors import SafetensorError, deserialize
from starlette.responses import Response

from service.forward_records import BatchPlace, ForwardWork
from service.front.errors import BadRequest
from service.front.routes.answers import (
    GENERATION_ERRORS,
    ForwardAnswer,
    Responses,
    body_schema,
    forward_answer,
)
from service.front.routes.body import BodyReader
from service.front.routes.compare import CompareAnswer, compared
from service.front.routes.engine_call import answer_once, check_sample, new_job
from service.front.routes.state import AppState, state_of
from service.front.schemas import MAX_PROFILED_CALLS, CompareForwardBody, ForwardBody
from service.modes import AUTO
from service.records import EngineStatus

router = APIRouter(tags=["forward"])
_forward_body = BodyReader(ForwardBody, as_sent=("inputs", "safetensors"))
_compare_body = BodyReader(CompareForwardBody)

RESPONSES: Responses = {200: {"model": ForwardAnswer}, **GENERATION_ERRORS}


# Before the other route, which would take `auto` for a mode; entered directly, both are `forward`.
@router.post(
    f"/modes/{AUTO}/forward",
    operation_id="forward_auto",
    openapi_extra=body_schema(ForwardBody),
    responses=RESPONSES,
)
async def forward_auto(request: Request) -> Response:
    """Call the module in the mode that is advised for the batch size; the answer names it with the reason."""
    return await forward(AUTO, request)


@router.post(
    "/modes/{mode}/forward",
    operation_id="forward",
    openapi_extra=body_schema(ForwardBody),
    responses=RESPONSES,
)
async def forward(mode: str, request: Request) -> Response:
    """Call the module in one mode, and report where the time went, from when the body is parsed."""
    state = state_of(request)
    state.check_mode(mode, beside=(AUTO,))
    body = await _forward_body.read(request, state)
    received_ns = perf_counter_ns()
    work = _work_of(state, body)
    check_sample(state, body.sample, body.profile)
    request_id: str = request.state.request_id
    asked = state.asked(mode, work.batch_size)
    request.state.mode = asked.mode
    job = new_job(
        state,
        request_id,
        received_ns,
        mode=asked.mode,
        forward=work,
        profile=body.profile,
        sample=body.sample,
    )
    return await answer_once(
        state, request, job, received_ns, lambda timing: forward_answer(state, request_id, asked, timing)
    )


def _work_of(state: AppState, body: ForwardBody) -> ForwardWork:
    """Raises BadRequest where fields exclude each other, or for a batch size that is not served here."""
    given = body.model_fields_set
    sent = next((name for name in ("inputs", "safetensors") if name in given), None)
    if sent is None and "batch_size" not in given:
        message = "batch_size: send it, or inputs or safetensors in its place"
        raise BadRequest(message, param="batch_size")
    if sent is not None and (needless := given & {"batch_size", "seed", "safetensors"} - {sent}):
        param = min(needless)
        raise BadRequest(f"{param}: leave it out where {sent} are sent", param=param)
    if body.profile and body.calls > MAX_PROFILED_CALLS:
        message = f"calls: a profiled request takes up to {MAX_PROFILED_CALLS}, got {body.calls}"
        raise BadRequest(message, param="calls")
    batch_size, tensors = body.batch_size, None
    if body.inputs is not None:
        batch_size = rows_of(body.inputs, _place_of(state, "inputs"))
    elif body.safetensors is not None:
        tensors = _content_of(body.safetensors)
        batch_size = rows_of_tensors(tensors, _place_of(state, "safetensors"))
    return ForwardWork(
        batch_size=state.bucket_of(batch_size, sent or "batch_size"),
        size=_size_of(state, body.size),
        seed=body.seed,
        calls=body.calls,
        inputs=body.inputs,
        safetensors=tensors,
        outputs=body.outputs,
    )


def _engine(state: AppState) -> EngineStatus:
    """Raises what `check` raises where there is none."""
    state.client.check(None)
    assert state.client.engine is not None, "else check has raised"
    return state.client.engine


def _size_of(state: AppState, size: str | None) -> str | None:
    """None for the first of the module's sizes, as where none is asked for. Raises BadRequest."""
    if size is None:
        return None
    sizes = _engine(state).input_sizes
    if size not in sizes:
        remedy = f"send one of {', '.join(sizes)}" if sizes else "the module has none: leave it out"
        raise BadRequest(f"size: '{size[:64]}' is not served here: {remedy}", param="size")
    return None if size == sizes[0] else size


def _place_of(state: AppState, param: str) -> BatchPlace:
    """Where inputs have the batch. Raises BadRequest where they cannot be sent, and what `check` raises."""
    engine = _engine(state)
    if engine.batch_place is None:
        message = f"{param}: this module's inputs do not tell the batch size: send batch_size and seed"
        raise BadRequest(message, param=param)
    return engine.batch_place


_parts = msgspec.json.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw])


def rows_of(inputs: bytes, place: BatchPlace) -> int:
    """The batch size of `inputs`: the length of the list that lies at `place`.

    What lies elsewhere is not decoded here: the engine alone knows shapes and dtypes. Raises BadRequest.
    """
    where = "inputs"
    found = _part_of(msgspec.Raw(inputs), where)
    for key in [*place.path, *[0] * place.dimension]:
        named = isinstance(key, str)
        held = key in found if isinstance(key, str) else key < len(found)
        if isinstance(found, dict) is not named or not held:
            kind = "an object (arguments by name)" if named else "a list (of positional arguments, or nested)"
            raise BadRequest(f"{where}: expected {kind}, with {key!r} in it", param="inputs")
        where += f".{key}" if named else f"[{key}]"
        found = _part_of(found[key], where)
    if isinstance(found, dict):
        raise BadRequest(f"{where}: expected a list, whose length is the batch size", param="inputs")
    return len(found)


def _part_of(raw: msgspec.Raw, where: str) -> Any:  # noqa: ANN401 - a list or a dict of parts
    try:
        return _parts.decode(raw)
    except msgspec.ValidationError:
        raise BadRequest(f"{where}: expected nested lists", param="inputs") from None


def _content_of(text: bytes) -> bytes:
    """The base64 of the JSON `text`, decoded. Raises BadRequest."""
    try:
        return msgspec.json.decode(text, type=bytes)
    except msgspec.ValidationError:
        message = "safetensors: send the file's bytes as a text in base64"
        raise BadRequest(message, param="safetensors") from None


def rows_of_tensors(content: bytes, place: BatchPlace) -> int:
    """As `rows_of`, of a safetensors file. Raises BadRequest."""
    name, dimension = str(place.path[0]), place.dimension
    try:
        found = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        message = f"safetensors: this is no file of that format ({error})"
        raise BadRequest(message, param="safetensors") from None
    shapes: dict[str, list[int]] = {name: tensor["shape"] for name, tensor in found}
    if len(place.path) > 1:
        message = f"safetensors: argument {name} is a tree of tensors: send inputs"
        raise BadRequest(message, param="safetensors")
    if len(shapes.get(name, ())) <= dimension:
        message = f"safetensors: no tensor '{name}' with the batch in its dimension {dimension}"
        raise BadRequest(message, param="safetensors")
    return shapes[name][dimension]


@router.post(
    "/compare",
    openapi_extra=body_schema(CompareForwardBody),
    responses={200: {"model": CompareAnswer}, **GENERATION_ERRORS},
)
async def compare(request: Request) -> Response:
    """Call the module in every mode once per round, in a fresh order each round, one after another.

    On a CPU each runs once more before that, sampled faster: its steps say how those of the others split.
    Speed-ups are of the calls alone, without HTTP.
    """
    state = state_of(request)
    body = await _compare_body.read(request, state)
    received_ns = perf_counter_ns()
    batch_size = state.bucket_of(body.batch_size)
    size = _size_of(state, body.size)
    work = ForwardWork(batch_size=batch_size, size=size, seed=body.seed, calls=body.calls)
    return await compared(request, received_ns, batch_size, body.modes, body.repeats, forward=work)
