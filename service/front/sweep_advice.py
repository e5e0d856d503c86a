"""What the report of a sweep advises: `advice.json` of its results folder, read once at the start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from service.front.model_name import model_name
from service.protocol.status import EngineStatus

ADVICE_FILE = "advice.json"
"""Of a sweep's folder, as docs/sweeps.md describes it."""

FORMAT_VERSION = 1


class AdvisedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The mode to ship at one batch size, and the report's reason."""

    batch_size: int
    mode: str
    reason: str


class SweepAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What is used of the file; it has more. None: the sweep did not record it.

    `folder` is where it was read, and not in the file.
    """

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
        """How reasons and the log call it."""
        commit = f" (commit {self.commit})" if self.commit else ""
        return f"the sweep {Path(self.folder).name}{commit}"

    def check(self, modes: Sequence[str], model: str, dtype: str | None) -> None:
        """Raise ValueError, with the remedy, where a service with these settings cannot follow it.

        `dtype` None: the device's default, which is known once there is an engine.
        """
        missing = sorted({one.mode for one in self.batches} - set(modes))
        if missing:
            advised = f"{self.folder} advises {', '.join(missing)}"
            raise ValueError(f"{advised}, which is not served: add it to --modes, or leave out --advice")
        if self.model is not None and model_name(self.model) != model_name(model):
            raise ValueError(_other(self.folder, "model", self.model, model))
        if None not in (self.dtype, dtype) and self.dtype != dtype:
            raise ValueError(_other(self.folder, "dtype", self.dtype, dtype))

    def unlike(self, engine: EngineStatus) -> str | None:
        """In what `engine` is not the one that was swept, so that advice is not of it; None: in nothing."""
        for fact in ("device_name", "dtype", "model_hash"):
            own, here = getattr(self, fact), getattr(engine, fact)
            if own != here:
                return f"its {fact.replace('_', ' ')} is {own or 'not recorded'}, and here it is {here}"
        return None


def read_advice(folder: Path) -> SweepAdvice:
    """`advice.json` in `folder`. Raises ValueError, with the remedy, where nobody can follow it."""
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


def _other(folder: str, what: str, own: str | None, here: str | None) -> str:
    return f"{folder} is of {what} {own}, and this service of {here}: sweep this one, or leave out --advice"
