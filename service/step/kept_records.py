"""Small JSON records that are kept beside compiled code; one that is lost is only measured again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from service.step.warnings_log import warn

Record = TypeVar("Record")


def read_record(file: Path, kind: type[Record]) -> Record | None:
    """The record in `file`; None where there is none. One that cannot be read is removed and reported."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        warn(f"{file} cannot be read ({error}) and is made anew")
        file.unlink(missing_ok=True)
        return None


def keep_record(file: Path, value: object) -> None:
    """Write `value` to `file`, of which no reader sees a part; where the disk refuses, that is reported."""
    temporary = file.with_suffix(f".{os.getpid()}")
    try:
        temporary.write_bytes(msgspec.json.encode(value))
        temporary.replace(file)
    except OSError as error:
        warn(f"{file} was not kept: {error.strerror}")
        temporary.unlink(missing_ok=True)
