"""The OpenAI-compatible request body; no field that would change the answer is ignored silently."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.config import JsonDict
from pydantic.json_schema import WithJsonSchema

from service.front.schemas.requests import (
    MAX_STOP_CHARACTERS,
    MAX_TOP_K,
    WHOLE,
    FiniteFloat,
    StopString,
    whole,
)

MAX_TOKEN = 2**31 - 1
MAX_COPIES = 128
PROMPT_FORMS = "a string, a list of strings, a list of token ids, or a list of such lists"

UNCHANGING: dict[str, tuple[Any, ...]] = {
    "echo": (False,), "suffix": ("",), "logprobs": (), "best_of": (), "presence_penalty": (0,),
    "frequency_penalty": (0,), "logit_bias": ({},), "repetition_penalty": (1,), "min_p": (0,),
    "stop_token_ids": ([],), "include_stop_str_in_output": (False,),
}  # fmt: skip
"""Fields that are not served, with the values besides null that have no effect: others are refused.

The last four are extensions that servers have in common and load generators can send.
"""


def _as_prompts(value: object) -> object:
    """Any of the four forms as a list of prompts, each a text or a list of token ids."""
    if isinstance(value, str):
        prompts: list[Any] = [value]
    elif not isinstance(value, list) or not value:
        raise ValueError(f"give {PROMPT_FORMS}")
    else:
        prompts = [value] if _is_token(value[0]) else value
    prompts = [list(map(whole, prompt)) if isinstance(prompt, list) else prompt for prompt in prompts]
    if not (all(isinstance(prompt, str) for prompt in prompts) or all(map(_are_tokens, prompts))):
        raise ValueError(f"give {PROMPT_FORMS}; token ids lie between 0 and {MAX_TOKEN}")
    if not all(prompts):
        raise ValueError("an empty prompt has nothing to be continued: send at least one token")
    return prompts


def _is_token(value: object) -> bool:
    token = whole(value)
    return type(token) is int and 0 <= token <= MAX_TOKEN


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_token, value))


def _same(value: object, other: object) -> bool:
    """Whether these are one JSON value: to Python, true is 1 and false is 0."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


_TOKEN: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN}
_TOKENS: dict[str, Any] = {"type": "array", "minItems": 1, "items": _TOKEN}
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_STOP_TEXT: dict[str, Any] = {**_TEXT, "maxLength": MAX_STOP_CHARACTERS}
_PROMPT: dict[str, Any] = {
    "description": "Prompts run together as one batch; `n` copies of each count too.",
    "anyOf": [
        _TEXT, {"type": "array", "minItems": 1, "items": _TEXT}, _TOKENS,
        {"type": "array", "minItems": 1, "items": _TOKENS},
    ],
}  # fmt: skip
_COUNT: dict[str, Any] = {
    "anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_COPIES}, {"type": "null"}]
}
_STOP: dict[str, Any] = {
    "anyOf": [_STOP_TEXT, {"type": "array", "maxItems": 4, "items": _STOP_TEXT}, {"type": "null"}],
    "description": "Ends a text; left out of it.",
}


def _not_served(name: str) -> Any:  # noqa: ANN401 - a field of any type
    """A field of UNCHANGING: of other values the schema says that they are refused."""
    values: JsonDict = {"enum": [None, *UNCHANGING[name]]}
    return Field(default=None, description="Not served.", json_schema_extra=values)


EXAMPLE: JsonDict = {"model": "tiny:eager", "prompt": "def mean(values):", "max_tokens": 32, "temperature": 0}


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    include_usage: bool | None = Field(default=None, description="One more chunk at the end, with usage.")


class CompletionBody(BaseModel):
    """POST /v1/completions. Fields not named here are ignored; null is as good as leaving one out."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        frozen=True,
        json_schema_extra={"examples": [EXAMPLE, {**EXAMPLE, "stream": True}]},
    )

    model: str = Field(description="`<model>:<mode>`, one of GET /v1/models.")
    prompt: Annotated[list[str | list[int]], BeforeValidator(_as_prompts), WithJsonSchema(_PROMPT)]
    max_tokens: Annotated[int, Field(ge=1), WHOLE] | None = Field(default=16, description="Per completion.")
    temperature: Annotated[FiniteFloat, Field(ge=0, le=100)] | None = Field(
        default=1.0, description="0: greedy."
    )
    top_p: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = 1.0
    n: Annotated[int, Field(ge=1, le=MAX_COPIES), WHOLE] | None = Field(
        default=1, description="Completions per prompt."
    )
    stop: Annotated[
        Annotated[list[StopString], Field(max_length=4)] | None,
        BeforeValidator(_as_list),
        WithJsonSchema(_STOP),
    ] = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), WHOLE] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOP_K), WHOLE] | None = Field(
        default=None, description="Not OpenAI's; 0 and -1: all tokens."
    )
    ignore_eos: bool | None = Field(
        default=False, description="Not OpenAI's: go on after an end-of-text token."
    )
    min_tokens: Annotated[int, Field(ge=0), WHOLE] | None = Field(
        default=0, description="Not OpenAI's: until then no end of text and no stop string ends a text."
    )
    echo: Any = _not_served("echo")
    suffix: Any = _not_served("suffix")
    logprobs: Any = _not_served("logprobs")
    best_of: Annotated[Any, WithJsonSchema(_COUNT)] = Field(
        default=None, description="Not served; equal to `n` it changes nothing."
    )
    presence_penalty: Any = _not_served("presence_penalty")
    frequency_penalty: Any = _not_served("frequency_penalty")
    logit_bias: Any = _not_served("logit_bias")
    repetition_penalty: Any = _not_served("repetition_penalty")
    min_p: Any = _not_served("min_p")
    stop_token_ids: Any = _not_served("stop_token_ids")
    include_stop_str_in_output: Any = _not_served("include_stop_str_in_output")

    @field_validator(*UNCHANGING)
    @classmethod
    def _has_no_effect(cls, value: object, info: ValidationInfo) -> object:
        """Refuse what would change the answer and is not served."""
        unchanging = UNCHANGING[str(info.field_name)]
        if info.field_name == "best_of":
            unchanging = (info.data.get("n") or 1,)
        if value is not None and not any(_same(value, other) for other in unchanging):
            raise ValueError("this is not served here; leave it out")
        return value

    @field_validator("min_tokens")
    @classmethod
    def _fits(cls, value: int | None, info: ValidationInfo) -> int | None:
        most = info.data.get("max_tokens", 16) or 16
        if value is not None and value > most:
            raise ValueError(f"{value} are more than max_tokens, which is {most}")
        return value
