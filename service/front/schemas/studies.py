"""The requests of the studies; `schemas.study_answers` has the answers.

Bounds keep a study short; what ends it for certain is its time limit. Defaults are those of the studies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.front.schemas.requests import WHOLE
from service.protocol.expressions import (
    LONGEST_CALL,
    OF_THE_MODEL,
    OPERATOR_CALLS,
    TAPE_EXPRESSIONS,
    operator_named,
)
from service.protocol.messages import Phase
from service.protocol.modes import GradMode

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
OverloadName = Annotated[
    str, Field(max_length=128, pattern=r"^\w+::\w+(\.\w+)?$", description="As torch has it: aten::mm.")
]
Grad = Annotated[GradMode, Field(description="Grad mode on (`enabled`) or off, or inference mode.")]
Microseconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class StudyBody(BaseModel):
    """What the body of every study has: nothing beside its own fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @property
    def writes_files(self) -> bool:
        """Whether the study leaves files beside its finding."""
        return False

    @property
    def given(self) -> dict[str, Any]:
        """The fields with their values; those without one are left out."""
        return self.model_dump(exclude_none=True)

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """The study's arguments for the fields in `given`."""
        return given


class OperatorsBody(StudyBody):
    """Which step to list, operator by operator. `native`: list the native functions that its samples were in.

    `lowering`: also graphs, the step in core ATen, and the dispatch table of `operator`.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "eager", "batch_size": 1}]})

    mode: ModeName
    batch_size: BatchSize = 1
    phase: Phase = "decode"
    native: bool | None = None
    lowering: bool | None = None
    operator: OverloadName | None = None


class OperatorBody(StudyBody):
    """One operator's call on tensors of [size, size], and the state of torch around it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"expression": "torch.add(a, b)"}]})

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

    @property
    def writes_files(self) -> bool:
        """Its trace, for Perfetto."""
        return True

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Without a page, which carries a whole plotting library."""
        return {**given, "page": False}


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

    @property
    def writes_files(self) -> bool:
        """The snapshot."""
        return self.snapshot

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """A snapshot is written where there is a folder for it."""
        return {name: value for name, value in given.items() if name != "snapshot"}


class InstructionsBody(StudyBody):
    """Whose steps' instructions to count (`mode` null: all), in a model of so many layers."""

    mode: ModeName | None = None
    batch_size: BatchSize = 1
    phase: Phase = "decode"
    layers: Annotated[int, Field(ge=1, le=256, description="With all of its own: the model."), WHOLE] = 1


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
    "instructions": InstructionsBody,
    "rms-norm": RmsNormBody,
}
"""By the name of the study; one more is one more row."""
