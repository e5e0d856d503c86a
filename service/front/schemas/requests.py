"""The request bodies, validated strictly; `schemas.answers` has the shape of the answers."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict

CONTROL_CHARACTERS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
CONTROL = re.compile(f"[{CONTROL_CHARACTERS}]")
READABLE: JsonDict = {"pattern": f"^[^{CONTROL_CHARACTERS}]*$"}

MAX_TOP_K = 1_000_000
MAX_STOP_CHARACTERS = 256
MAX_REPEATS = 50


def _readable(text: str) -> str:
    """Refuse control characters: a tokenizer accepts them, but they are almost always a mistake."""
    if found := CONTROL.search(text):
        raise ValueError(
            f"control character U+{ord(found[0]):04X} at position {found.start()}; of these only newline, tab"
            " and return may stand in a prompt"
        )
    return text


def whole(value: object) -> object:
    """A number without a fraction is an integer to JSON Schema, however it is written: 4.0 is 4."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _off(value: bool) -> bool:
    """Refuse what is not served by this route."""
    if value:
        raise ValueError("this is not served here; leave it out")
    return value


WHOLE = BeforeValidator(whole)
"""Stands behind the bounds of an integer: before them, pydantic leaves these out of the schema."""

Off = Annotated[bool, AfterValidator(_off), Field(json_schema_extra={"const": False})]
"""A field of another route. Of a `Literal[False]`, 0 would be one too."""

Prompt = Annotated[str, Field(min_length=1, json_schema_extra=READABLE), AfterValidator(_readable)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class Generation(BaseModel):
    """What every generating call takes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    prompts: list[Prompt] = Field(min_length=1, description="One batch: they run together, in one step each.")
    max_new_tokens: Annotated[int, Field(ge=1), WHOLE] = Field(
        default=32, description="Per prompt; with the longest prompt within the context."
    )
    temperature: FiniteFloat = Field(default=0.0, ge=0, le=100, description="0: greedy.")
    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K), WHOLE] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63), WHOLE] | None = None
    stop: list[StopString] = Field(default=[], max_length=4, description="Ends a text; left out of it.")
    ignore_eos: bool = Field(default=False, description="Go on after an end-of-text token.")


EXAMPLE: JsonDict = {"prompts": ["def mean(values):"], "max_new_tokens": 32, "temperature": 0.0}


class GenerateBody(Generation):
    """POST /v1/modes/{mode}/generate."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [EXAMPLE, {**EXAMPLE, "stream": True}],
            "not": {
                "required": ["profile", "sample"],
                "properties": {"profile": {"const": True}, "sample": {"const": True}},
            },
        }
    )

    stream: bool = Field(default=False, description="Server-sent events: `token`s, then one `result`.")
    profile: bool = Field(default=False, description="Run under torch.profiler; enters no time histogram.")
    sample: bool = Field(
        default=False,
        description="On a CPU: sample its steps some 1,000 times a second; enters no time histogram.",
    )
    alone: bool = Field(default=False, description="Never merged with others, where the service merges.")


class CompareBody(Generation):
    """POST /v1/compare."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{**EXAMPLE, "modes": ["eager", "inference_mode"], "repeats": 8}]}
    )

    modes: list[str] | None = Field(
        default=None, min_length=1, description="All that are ready, if left out."
    )
    repeats: Annotated[int, Field(ge=1, le=MAX_REPEATS), WHOLE] = Field(
        default=8,
        description="Rounds; each runs all modes, shuffled. Below 8 a speed-up has no interval.",
    )
    stream: Off = False
    profile: Off = False
