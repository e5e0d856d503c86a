"""The OpenAI-compatible answers, as the OpenAPI page shows them and mypy checks them."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from service.front.schemas.answers import ModeName, TimingsBody, Usage
from service.protocol.messages import FinishReason
from service.protocol.status import Readiness


class Choice(TypedDict):
    """One completion, or in a stream a piece of it; `finish_reason` comes with its last."""

    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason | None


class Extension(TypedDict):
    """What OpenAI's answer has no field for; OpenAI's clients ignore it."""

    mode: ModeName
    device: str
    batch_size: int
    batch_bucket: int
    timings: TimingsBody


class CompletionAnswer(TypedDict):
    """Answer of completions, and every chunk of a stream; `launchbound` comes in the last."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: NotRequired[Usage | None]
    launchbound: NotRequired[Extension]


class ModelState(TypedDict):
    """The mode behind a model id."""

    mode: str
    state: Readiness
    effective: str | None
    reason: str | None


class ModelBody(TypedDict):
    """One mode of this instance as a model.

    `max_model_len` is the context in tokens, `revision` the Hugging Face hub's commit of the model, each null
    until it is known, the latter also for a model that is none of the hub's.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None
    revision: str | None
    launchbound: ModelState


class ModelsAnswer(TypedDict):
    """Answer of GET /v1/models."""

    object: Literal["list"]
    data: list[ModelBody]


class CompletionErrorDetail(TypedDict):
    """The one error shape, and `code`, which OpenAI's clients read.

    There is none where the connection was refused before the address was known: 400, 408, 431, and a 503 for
    too many connections.
    """

    type: str
    message: str
    param: str | None
    code: NotRequired[str]


class CompletionErrorBody(TypedDict):
    """Answer of these routes where they cannot serve."""

    error: CompletionErrorDetail
