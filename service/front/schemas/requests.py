"""The request bodies, validated strictly; `schemas.answers` has the shape of the answers."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
MAX_TOP_K = 1_000_000
MAX_REPEATS = 50


def _readable(text: str) -> str:
    """Refuse control characters: a tokenizer accepts them, but they are almost always a mistake."""
    if found := CONTROL.search(text):
        raise ValueError(
            f"control character U+{ord(found[0]):04X} at position {found.start()}; of these only newline, tab"
            " and return may stand in a prompt"
        )
    return text


Prompt = Annotated[str, Field(min_length=1), AfterValidator(_readable)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class Generation(BaseModel):
    """What every generating call takes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    prompts: list[Prompt] = Field(min_length=1, description="One batch: they run together, in one step each.")
    max_new_tokens: int = Field(
        default=32, ge=1, description="Per prompt; with the longest prompt within the context."
    )
    temperature: FiniteFloat = Field(default=0.0, ge=0, le=100, description="0: greedy.")
    top_k: int | None = Field(default=None, ge=1, le=MAX_TOP_K)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: list[StopString] = Field(default=[], max_length=4, description="Ends a text; left out of it.")
    ignore_eos: bool = Field(default=False, description="Go on after an end-of-text token.")


EXAMPLE: JsonDict = {"prompts": ["def mean(values):"], "max_new_tokens": 32, "temperature": 0.0}


class GenerateBody(Generation):
    """POST /v1/modes/{mode}/generate."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE, {**EXAMPLE, "stream": True}]})

    stream: bool = Field(default=False, description="Server-sent events: `token`s, then one `result`.")
    profile: bool = Field(default=False, description="Run under torch.profiler; enters no time histogram.")


class CompareBody(Generation):
    """POST /v1/compare."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{**EXAMPLE, "modes": ["eager", "inference_mode"], "repeats": 8}]}
    )

    modes: list[str] | None = Field(
        default=None, min_length=1, description="All that are ready, if left out."
    )
    repeats: int = Field(
        default=8,
        ge=1,
        le=MAX_REPEATS,
        description="Rounds; each runs all modes, shuffled. Below 8 a speed-up has no interval.",
    )
    stream: Literal[False] = False
    profile: Literal[False] = False
