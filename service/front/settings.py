"""The settings of the service, by `LAUNCHBOUND_*` variables or by keyword; unknown keys are refused."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import Field, InstanceOf, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from models.naming import is_called
from service.machine import Share
from service.modes import asked_modes, default_modes, named_modes
from service.records import Batching, EngineSettings, EngineStatus
from service.statistics.choice import State
from service.workloads import FORWARD, GENERATE, Workload

ADVICE_FILE = "advice.json"
"""Of a sweep's folder, as docs/sweeps.md describes it."""

FORMAT_VERSION = 2


class AdvisedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The mode to ship at one batch size, whether that is resolved, and the report's reason."""

    batch_size: int
    mode: str
    state: State = "faster"
    beats_baseline: bool = False
    reason: str


class SweepAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What is used of the file. None: the sweep did not record it. `folder` is where the file was read."""

    format_version: int
    valid: bool
    model: str | None = None
    model_hash: str | None = None
    device_name: str | None = None
    dtype: str | None = None
    commit: str | None = None
    batches: list[AdvisedBatch] = []
    folder: str = ""

    @property
    def name(self) -> str:
        commit = f" (commit {self.commit})" if self.commit else ""
        return f"the sweep {Path(self.folder).name}{commit}"

    @property
    def resolved(self) -> list[AdvisedBatch]:
        """The batch sizes that the sweep has an answer for, or a mode that is sure to beat the baseline."""
        return [one for one in self.batches if one.state != "not resolved" or one.beats_baseline]

    def check(self, modes: Sequence[str], model: str, dtype: str | None) -> None:
        """Raise ValueError, with the remedy, where a service with these settings cannot follow it."""
        missing = sorted({one.mode for one in self.resolved} - set(modes))
        if missing:
            advised = f"{self.folder} advises {', '.join(missing)}"
            raise ValueError(f"{advised}, which is not served: add it to --modes, or leave out --advice")
        if self.model is not None and model_name(self.model) != model_name(model):
            raise ValueError(_other_thing(self.folder, "model", self.model, model))
        if None not in (self.dtype, dtype) and self.dtype != dtype:
            raise ValueError(_other_thing(self.folder, "dtype", self.dtype, dtype))

    def unlike(self, engine: EngineStatus) -> str | None:
        """How `engine` differs from the one that was swept; None where it does not."""
        for fact in ("device_name", "dtype", "model_hash"):
            own, here = getattr(self, fact), getattr(engine, fact)
            if own != here:
                return f"its {fact.replace('_', ' ')} is {own or 'not recorded'}, and here it is {here}"
        return None


def read_advice(folder: Path) -> SweepAdvice:
    """`advice.json` in `folder`. Raises ValueError, with the remedy, where it cannot be used."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: name the one that a sweep wrote its results to")
    path = folder / ADVICE_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=SweepAdvice)
    except FileNotFoundError:
        raise ValueError(f"there is no {path}: `launchbound report {folder}` writes it") from None
    except (OSError, msgspec.DecodeError) as error:
        remedy = f"`launchbound report {folder}` writes it again"
        raise ValueError(f"{path} cannot be read ({error}): {remedy}") from error
    if found.format_version != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format {found.format_version}, this version reads {FORMAT_VERSION}: write it again "
            f"by `launchbound report {folder}`"
        )
    if not found.valid:
        raise ValueError(f"the sweep in {folder} is not valid, as its report says: sweep again")
    return msgspec.structs.replace(found, folder=str(folder))


def _other_thing(folder: str, what: str, own: str | None, here: str | None) -> str:
    return f"{folder} is of {what} {own}, and this service of {here}: sweep this one, or leave out --advice"


PREFIX = "LAUNCHBOUND_"

KEY_VARIABLE = PREFIX + "API_KEY"

KNOWN_ELSEWHERE = frozenset({"LAUNCHBOUND_URL", "LAUNCHBOUND_RUN"})
"""Variables of the load generator and its reports, which may stand in the same environment."""


def _default_cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "launchbound"


Cores = Annotated[list[Annotated[int, Field(ge=0)]] | None, NoDecode]


class Settings(BaseSettings):
    """The service's settings. Each field is read from `LAUNCHBOUND_<NAME>`; lists are comma-separated."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", env_ignore_empty=True, frozen=True, validate_default=True
    )

    # What is served, passed on to the engine.
    model: str = Field(default="tiny", min_length=1)
    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "autocast-bfloat16"] | None = None
    modes: Annotated[list[str], NoDecode] = Field(default_factory=default_modes, min_length=1)
    require_modes: Annotated[list[str] | None, NoDecode] = Field(default=None, min_length=1)
    batch_sizes: Annotated[list[int], NoDecode] = Field(default=[1, 4, 16], min_length=1, max_length=32)
    linears: Literal["auto", "aten", "transposed"] = "aten"
    prefill_chunk: int = Field(default=64, ge=1, le=4096)
    context: int | None = Field(default=None, ge=16, le=1_048_576)
    threads: int | None = Field(default=None, ge=1)
    cores: Share = "all"
    engine_cpus: Cores = None
    cache_folder: Path = Field(default_factory=_default_cache_folder)
    instrumentation: Literal["off", "full"] = "full"
    profile_every: int = Field(default=0, ge=0)
    batching: Batching = "off"

    # How it is served.
    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8000, ge=0, le=65535)
    api_key: SecretStr | None = None
    allowed_hosts: Annotated[list[str], NoDecode] = Field(default=[])
    max_connections: int = Field(default=512, ge=1)
    head_timeout_seconds: float = Field(default=10.0, gt=0, le=3600, allow_inf_nan=False)
    body_timeout_seconds: float = Field(default=20.0, gt=0, le=3600, allow_inf_nan=False)
    unread_timeout_seconds: float = Field(default=30.0, gt=0, le=3600, allow_inf_nan=False)
    max_queue: int = Field(default=64, ge=1)
    request_timeout_seconds: float = Field(default=120.0, gt=0, le=86400, allow_inf_nan=False)
    max_body_bytes: int = Field(default=1_048_576, ge=1024)
    drain_seconds: float = Field(default=20.0, ge=0, le=3600, allow_inf_nan=False)
    hang_seconds: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    anatomy_idle_seconds: float = Field(default=300.0, ge=0, le=86400, allow_inf_nan=False)
    front_cpus: Cores = None
    log_format: Literal["text", "json"] = "text"
    log_requests: Literal["all", "failed", "off"] = "all"
    commit: str | None = None
    results_folder: Path = Path("results")
    advice: Annotated[InstanceOf[SweepAdvice] | None, NoDecode] = None

    @model_validator(mode="before")
    @classmethod
    def _variables_are_known(cls, values: Any) -> object:  # noqa: ANN401 - what pydantic has gathered
        """And none is an empty key, as `$(cat FILE)` of an empty file makes; other empty ones are ignored."""
        given = [value for name, value in os.environ.items() if name.upper() == KEY_VARIABLE]
        if "" in given and "api_key" not in values:
            raise ValueError(f"{KEY_VARIABLE} is empty: set it to a key, or unset it to serve without one")
        refuse_unknown_variables(os.environ, cls.model_fields)
        return values

    @field_validator(
        "modes", "require_modes", "batch_sizes", "allowed_hosts", "engine_cpus", "front_cpus", mode="before"
    )
    @classmethod
    def _lists_may_be_text(cls, value: object) -> object:
        """'1,4,16' as lists are written in an environment; anything else is left to pydantic."""
        if not isinstance(value, str):
            return value
        return [part.strip() for part in value.split(",") if part.strip()]

    @field_validator("device")
    @classmethod
    def _device_has_a_name(cls, value: str) -> str:
        if re.fullmatch(r"auto|cpu|cuda(:(0|[1-9]\d?))?", value) is None:
            raise ValueError(f"device '{value}': try one of auto, cpu, cuda, or a GPU by its number: cuda:1")
        return value

    @field_validator("dtype", mode="before")
    @classmethod
    def _auto_is_the_devices_default(cls, value: object) -> object:
        return None if value == "auto" else value

    @field_validator("modes")
    @classmethod
    def _modes_exist(cls, value: list[str]) -> list[str]:
        return asked_modes(value)

    @field_validator("batch_sizes")
    @classmethod
    def _batch_sizes_are_a_ladder(cls, value: list[int]) -> list[int]:
        if min(value) < 1 or max(value) > 4096:
            raise ValueError(f"batch sizes lie between 1 and 4096, got {value}")
        return sorted(set(value))

    @field_validator("engine_cpus", "front_cpus")
    @classmethod
    def _cores_exist(cls, value: list[int] | None) -> list[int] | None:
        usable = sorted(os.sched_getaffinity(0))
        if value is not None and (not value or not set(value) <= set(usable)):
            raise ValueError(f"this process may use the cores {usable}; choose among these, got {value}")
        return value

    @field_validator("api_key")
    @classmethod
    def _key_can_be_sent(cls, value: SecretStr | None) -> SecretStr | None:
        key = None if value is None else value.get_secret_value()
        if key == "":
            raise ValueError("an API key has at least one character: leave it out to serve without one")
        if key is not None and not all("!" <= char <= "~" for char in key):
            raise ValueError("an API key consists of printable ASCII without spaces and line breaks")
        return value

    @field_validator("advice", mode="before")
    @classmethod
    def _advice_is_read(cls, value: object) -> object:
        """Read the folder here, so that bad advice is refused as every bad setting is."""
        return read_advice(Path(os.path.expanduser(value))) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        """Requests are profiled by turns only where each runs alone."""
        if self.advice is not None:
            self.advice.check(self.modes, self.model, self.dtype)
        if unknown := [name for name in self.require_modes or () if name not in self.modes]:
            raise ValueError(
                f"require_modes: {', '.join(unknown)} is not served; add it to the modes, or require some of "
                f"{', '.join(self.modes)}"
            )
        if self.batching != "off" and not self.workload.tokens:
            raise ValueError(f"batching: calls of the module {self.model} are not merged; leave it out")
        if self.batching != "off" and self.profile_every:
            raise ValueError(
                'profile_every: where requests are merged only those with "profile": true are profiled, '
                "alone; leave it out, or set batching to off"
            )
        return self

    @field_validator("cache_folder", "results_folder")
    @classmethod
    def _absolute(cls, value: Path, field: ValidationInfo) -> Path:
        try:
            return value.expanduser().absolute()
        except (RuntimeError, FileNotFoundError) as error:
            missing = "home" if isinstance(error, RuntimeError) else "present"
            variable = f"{PREFIX}{str(field.field_name).upper()}"
            raise ValueError(
                f"there is no {missing} folder for {value}: set {variable} to a folder that you can write to"
            ) from None

    @property
    def workload(self) -> Workload:
        """What this service does with a request; the model's name says it before the engine is up."""
        return FORWARD if is_called(self.model) else GENERATE

    @property
    def ladder(self) -> list[str]:
        """The modes in the ladder's order; `modes` are in the order in which they are made ready."""
        return named_modes(self.modes)

    def engine_settings(self, address: str) -> EngineSettings:
        same = {name: getattr(self, name) for name in EngineSettings.__struct_fields__ if hasattr(self, name)}
        own = {"address": address, "cpus": self.engine_cpus, "cache_folder": str(self.cache_folder)}
        return EngineSettings(**{**same, **own})


def refuse_unknown_variables(environment: Iterable[str], fields: Iterable[str]) -> None:
    """Raise ValueError, naming it and the nearest known one, for an unknown `LAUNCHBOUND_*` variable."""
    known = {PREFIX + name.upper() for name in fields}
    for name in sorted(environment):
        if name.upper().startswith(PREFIX) and name.upper() not in known | KNOWN_ELSEWHERE:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
            raise ValueError(f"unknown environment variable {name}; {hint}")


def model_name(model: str) -> str:
    """The last part of a folder or hub id, without its revision, in safe characters: as in model ids."""
    pinned = re.fullmatch(r"hf:((?:[\w.-]+/)?[\w.-]+)@.+", model)
    name = pinned[1] if pinned else model.removeprefix("hf:")
    return re.sub(r"[^\w.-]", "-", PurePath(name).name) or "model"
