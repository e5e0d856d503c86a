"""The request bodies, validated strictly, and answers that have the fields of a record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeVar, cast, get_type_hints

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)
from pydantic.config import JsonDict
from pydantic.json_schema import WithJsonSchema
from typing_extensions import TypedDict

from service.modes import GradMode
from service.records import Phase
from service.study_names import LONGEST_CALL, OF_THE_MODEL, OPERATOR_CALLS, TAPE_EXPRESSIONS, operator_named

Body = TypeVar("Body")


def fields_of(
    record: type[msgspec.Struct], names: Iterable[str] | None = None
) -> Callable[[type[Body]], type[Body]]:
    """Gives the body of an answer the fields of `record` (all, or those in `names`) with their types."""

    def made(body: type[Body]) -> type[Body]:
        hints = get_type_hints(record)
        shape = TypedDict(body.__name__, {name: hints[name] for name in names or hints})  # type: ignore[misc]
        shape.__doc__ = body.__doc__
        return cast(type[Body], shape)

    return made


CONTROL_CHARACTERS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
CONTROL = re.compile(f"[{CONTROL_CHARACTERS}]")
READABLE: JsonDict = {"pattern": f"^[^{CONTROL_CHARACTERS}]*$"}

MAX_TOP_K = 1_000_000
MAX_STOP_CHARACTERS = 256


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


NOT_SERVED = "this is not served here; leave it out"


def _off(value: bool) -> bool:
    if value:
        raise ValueError(NOT_SERVED)
    return value


WHOLE = BeforeValidator(whole)
"""Stands behind the bounds of an integer: before them, pydantic leaves these out of the schema."""

Off = Annotated[bool, AfterValidator(_off), Field(json_schema_extra={"const": False})]
"""A field of another route. Of a `Literal[False]`, 0 would be one too."""

Prompt = Annotated[str, Field(min_length=1, json_schema_extra=READABLE), AfterValidator(_readable)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class Generation(BaseModel):
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


Profile = Annotated[bool, Field(description="Run under torch.profiler; enters no time histogram.")]
Sample = Annotated[
    bool,
    Field(description="On a CPU: sample its steps some 1,000 times a second; enters no time histogram."),
]


def _never_both(**fields: JsonDict) -> JsonDict:
    """A schema that refuses a body in which each of these fields is as its own schema says."""
    return {"not": {"required": list(fields), "properties": dict(fields)}}


class GenerateBody(Generation):
    """POST /v1/modes/{mode}/generate."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [EXAMPLE, {**EXAMPLE, "stream": True}],
            **_never_both(profile={"const": True}, sample={"const": True}),
        }
    )

    stream: bool = Field(default=False, description="Server-sent events: `token`s, then one `result`.")
    profile: Profile = False
    sample: Sample = False
    alone: bool = Field(default=False, description="Never merged with others, where the service merges.")


_Prompt = Annotated[str, msgspec.Meta(min_length=1, pattern=str(READABLE["pattern"]))]
_Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class PlainGeneration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A valid `GenerateBody`. Decoded at once, which takes a third of the time, it accepts nothing else, and
    of what is valid nearly all: a number such as 4.0 for an integer is left to `GenerateBody`.
    """

    prompts: Annotated[list[_Prompt], msgspec.Meta(min_length=1)]
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1)] = 32
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0
    top_k: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOP_K)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    stop: Annotated[list[_Stop], msgspec.Meta(max_length=4)] = []
    ignore_eos: bool = False
    stream: bool = False
    profile: bool = False
    sample: bool = False
    alone: bool = False


Modes = Annotated[list[str] | None, Field(min_length=1, description="All that are ready, if left out.")]
ROUNDS = "Rounds; each runs all modes, shuffled. Below 8 a speed-up has no interval."
Repeats = Annotated[int, Field(ge=1, le=50, description=ROUNDS), WHOLE]


class CompareBody(Generation):
    """POST /v1/compare."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{**EXAMPLE, "modes": ["eager", "inference_mode"], "repeats": 8}]}
    )

    modes: Modes = None
    repeats: Repeats = 8
    stream: Off = False
    profile: Off = False


MAX_CALLS = 10_000
MAX_PROFILED_CALLS = 100
"""Of a profiled request: each adds all its kernels to a trace in memory."""

ModuleBatch = Annotated[int, Field(ge=1, description="One of the service's batch sizes."), WHOLE]
_TENSORS: JsonDict = {"type": ["array", "object"], "minItems": 1, "minProperties": 1}
_BASE64: JsonDict = {"type": "string", "contentEncoding": "base64", "minLength": 12}


def _without_default(schema: JsonDict) -> None:
    """One of two fields must be sent, so that neither has a default."""
    del schema["default"]


_SIZE: JsonDict = {"type": ["integer", "string", "null"], "maxLength": 32}


def _as_size(value: object) -> object:
    value = whole(value)
    if isinstance(value, bool) or not isinstance(value, int | str | None):
        raise ValueError("send a whole number or a text, one of the module's sizes")
    return value if value is None else str(value)


class Calls(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    seed: Annotated[int, Field(ge=0, lt=2**63), WHOLE] = Field(
        default=0, description="Of the inputs that the module makes itself."
    )
    size: Annotated[str | None, BeforeValidator(_as_size), WithJsonSchema(_SIZE)] = Field(
        default=None, description="One of the module's sizes, if it has some; the first, if left out."
    )
    calls: Annotated[int, Field(ge=1, le=MAX_CALLS), WHOLE] = Field(
        default=1, description="In a row, on the same inputs; timings are their sums."
    )


class ForwardBody(Calls):
    """POST /v1/modes/{mode}/forward: `batch_size`, `inputs` or `safetensors`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"batch_size": 8, "calls": 1}, {"inputs": {"x": [[0.5, -1.0]]}, "outputs": True}],
            "oneOf": [{"required": [name]} for name in ("batch_size", "inputs", "safetensors")],
            "allOf": [
                _never_both(inputs={}, seed={}),
                _never_both(safetensors={}, seed={}),
                _never_both(profile={"const": True}, sample={"const": True}),
                _never_both(profile={"const": True}, calls={"exclusiveMinimum": MAX_PROFILED_CALLS}),
            ],
        }
    )

    batch_size: ModuleBatch = Field(default=0, json_schema_extra=_without_default)
    inputs: Annotated[bytes | None, WithJsonSchema(_TENSORS)] = Field(
        default=None,
        json_schema_extra=_without_default,
        description="In place of batch_size and seed: the positional arguments as a list, or those by name as"
        " an object, each a tensor as nested lists. Dtypes and shapes are those of the module's own inputs,"
        " and so is where the batch lies.",
    )
    safetensors: Annotated[bytes | None, WithJsonSchema(_BASE64)] = Field(
        default=None,
        json_schema_extra=_without_default,
        description="The same as a file of that format in base64. Its tensors have the names of the"
        " arguments, or their places, 0, 1, …",
    )
    outputs: bool = Field(default=False, description="Answer what the last call returned.")
    profile: Profile = False
    sample: Sample = False


class CompareForwardBody(Calls):
    """POST /v1/compare, of a module."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"batch_size": 8, "calls": 1, "modes": ["eager", "inference_mode"], "repeats": 8}]
        }
    )

    batch_size: ModuleBatch
    modes: Modes = None
    repeats: Repeats = 8


MAX_TOKEN = 2**31 - 1
MAX_COPIES = 128
PROMPT_FORMS = "a string, a list of strings, a list of token ids, or a list of such lists"

UNCHANGING: dict[str, tuple[Any, ...]] = {
    "echo": (False,), "suffix": ("",), "logprobs": (), "best_of": (1,), "presence_penalty": (0,),
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
_STOP: dict[str, Any] = {
    "anyOf": [_STOP_TEXT, {"type": "array", "maxItems": 4, "items": _STOP_TEXT}, {"type": "null"}],
    "description": "Ends a text; left out of it.",
}


def _not_served(name: str) -> Any:  # noqa: ANN401 - a field of any type
    """A field of UNCHANGING: of other values the schema says that they are refused."""
    values: JsonDict = {"enum": [None, *UNCHANGING[name]]}
    return Field(default=None, description="Not served.", json_schema_extra=values)


COMPLETION_EXAMPLE: JsonDict = {
    "model": "tiny:eager",
    "prompt": "def mean(values):",
    "max_tokens": 32,
    "temperature": 0,
}


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
        json_schema_extra={"examples": [COMPLETION_EXAMPLE, {**COMPLETION_EXAMPLE, "stream": True}]},
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
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        WithJsonSchema(_STOP),
    ] = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), WHOLE] | None = None
    stream: bool | None = Field(default=False, description="Server-sent events, as OpenAI has them.")
    stream_options: StreamOptions | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOP_K), WHOLE] | None = Field(
        default=None, description="Not OpenAI's; 0 and -1: all tokens."
    )
    ignore_eos: bool | None = Field(
        default=False, description="Not OpenAI's: go on after an end-of-text token."
    )
    echo: Any = _not_served("echo")
    suffix: Any = _not_served("suffix")
    logprobs: Any = _not_served("logprobs")
    best_of: Any = _not_served("best_of")
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
        unchanging = UNCHANGING[str(info.field_name)]
        if value is not None and not any(_same(value, other) for other in unchanging):
            raise ValueError(NOT_SERVED)
        return value


MOST_SIZE = 1024
"""Rows and columns of an operator's tensors: a product of two such matrices takes a tenth of a second."""

MOST_ROUNDS = 60


def _known_call(text: str) -> str:
    operator_named(text)
    return text


def _one_of(known: Iterable[str]) -> AfterValidator:
    names = tuple(known)

    def check(value: str) -> str:
        if value not in names:
            raise ValueError(f"no '{value[:64]}' here; try one of {', '.join(names)}")
        return value

    return AfterValidator(check)


Name = Annotated[str, Field(max_length=64)]
ModeName = Annotated[str, Field(max_length=64, description="One of GET /v1/modes.")]
BatchSize = Annotated[int, Field(ge=1, description="Run in the smallest bucket that holds it."), WHOLE]
Rounds = Annotated[int, Field(ge=6, le=MOST_ROUNDS, description="Repeats behind every interval."), WHOLE]
Size = Annotated[int, Field(ge=1, le=MOST_SIZE), WHOLE]
Grad = Annotated[GradMode, Field(description="Grad mode on (`enabled`) or off, or inference mode.")]
Microseconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class StudyBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OperatorsBody(StudyBody):
    """Which step to list, operator by operator."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "eager", "batch_size": 1}]})

    mode: ModeName
    batch_size: BatchSize = 1
    phase: Phase = "decode"


class OperatorBody(StudyBody):
    """One operator's call on tensors of [size, size], and the state of torch around it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"expression": "torch.add(x, y)"}]})

    expression: Annotated[str, Field(max_length=LONGEST_CALL), AfterValidator(_known_call)] = Field(
        default=OPERATOR_CALLS["add"],
        description=f"One of {'; '.join(OPERATOR_CALLS.values())}: compared with these, never evaluated. "
        "Arguments may have other names.",
    )
    size: Size = 64
    dtype: Literal["float32", "bfloat16"] = "float32"
    grad: Grad = "enabled"
    autocast: bool = False
    requires_grad: bool = True
    rounds: Rounds = 15


class LayersBody(StudyBody):
    """Operators on tensors of [size, size], each layer of PyTorch by ablation."""

    operations: list[Annotated[Name, _one_of(OPERATOR_CALLS)]] = Field(
        default=["matmul", "add", "layer_norm"], min_length=1, max_length=len(OPERATOR_CALLS)
    )
    sizes: list[Size] = Field(default=[8, 64, 256, 512], min_length=1, max_length=8)
    grad: Grad = "enabled"
    autocast: bool | None = Field(default=None, description="null: as the service's precision has it.")
    rounds: Rounds = 15


class TapeBody(StudyBody):
    """Whose tape to read, and of which modes' steps (`mode` null: all) what they save."""

    expression: Annotated[Name, _one_of([*OF_THE_MODEL, *TAPE_EXPRESSIONS])] = Field(
        default="block", json_schema_extra={"enum": [*OF_THE_MODEL, *TAPE_EXPRESSIONS]}
    )
    batch_size: BatchSize = 1
    phase: Phase = "decode"
    mode: ModeName | None = None


class TimelineBody(StudyBody):
    """Which step to draw as host and device blocks; `against`: a second mode on the same axis."""

    mode: ModeName = "eager"
    against: ModeName | None = None
    batch_size: BatchSize = 1
    phase: Phase = "decode"


class BudgetBody(StudyBody):
    """Which modes and batches to measure (null: all), and the step of the budget with what overrides it."""

    modes: Annotated[list[ModeName], Field(max_length=16)] | None = None
    batch_sizes: Annotated[list[BatchSize], Field(min_length=1, max_length=32)] | None = None
    mode: ModeName | None = None
    batch_size: BatchSize | None = None
    ops_per_step: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] | None = None
    microseconds_per_op: Microseconds | None = None
    kernel_microseconds: Microseconds | None = None
    rounds: Rounds = 11


class MemoryBody(StudyBody):
    """Whose steps' memory to read (`mode` null: all). `snapshot`: of CUDA's allocator, as a file."""

    mode: ModeName | None = None
    batch_size: BatchSize = 1
    phase: Phase = "decode"
    snapshot: bool = False


class RmsNormBody(StudyBody):
    """Hidden states [rows, width] that are normed; `width` null: the model's."""

    rows: Annotated[int, Field(ge=1, le=4096), WHOLE] = 16
    width: Annotated[int, Field(ge=1, le=8192), WHOLE] | None = None
    rounds: Rounds = 15


STUDY_BODIES: dict[str, type[StudyBody]] = {
    "operators": OperatorsBody,
    "operator": OperatorBody,
    "layers": LayersBody,
    "tape": TapeBody,
    "timeline": TimelineBody,
    "budget": BudgetBody,
    "memory": MemoryBody,
    "rms-norm": RmsNormBody,
}
"""By the name of the study; one more is one more row."""
