"""The rounds of several measurements of one setting, put together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadtests.batching_cost.measure import FORMAT_VERSION, RESULT_FILE
from loadtests.batching_cost.rounds import Round, load_found, summary
from loadtests.run.target import TargetError, linear_layout

_ENGINE = (
    "batching",
    "batch_window_ms",
    "device_name",
    "torch",
    "model_hash",
    "dtype",
    "threads",
    "batch_buckets",
)


def read(folder: Path, mode: str) -> dict[str, Any]:
    """The document of `mode` in `folder`. Raises TargetError where it is missing, broken or of another
    format.
    """
    path = folder / RESULT_FILE.format(mode=mode)
    try:
        document: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict)
    except (OSError, msgspec.DecodeError) as error:
        raise TargetError(
            f"{path} cannot be read ({error}): name folders that --out has written, and their --mode"
        ) from error
    if (version := document.get("format_version")) != FORMAT_VERSION:
        raise TargetError(f"{path} has format {version}, this version reads {FORMAT_VERSION}: measure anew")
    return document


def together(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Request, load and summary of all rounds, each of the same weight.

    A measurement that differs from the others by more than its interval is for the reader to see: the rounds
    together do not tell. Raises TargetError where `documents` differ in more than when and of which commit.
    """
    settings = [_setting(one) for one in documents]
    for name in settings[0]:
        if len(unlike := {str(one[name]) for one in settings}) > 1:
            raise TargetError(f"not put together, {name} differs: {' and '.join(sorted(unlike))}")
    rounds = [one for document in documents for one in msgspec.convert(document["rounds"], list[Round])]
    return {"request": documents[0]["request"], "load_found": load_found(rounds), "summary": summary(rounds)}


def _setting(document: dict[str, Any]) -> dict[str, Any]:
    """What measurements have in common whose rounds are of one kind."""
    off, batched = document["off"], document["batched"]
    return {
        "request": document["request"],
        "load": document["load"],
        "requests of a visit": len(document["rounds"][0]["off"]["latency_seconds"]),
        "number of services": len({off["url"], batched["url"]}),
        "linears": linear_layout(batched["engine"]),
        **{name: batched["engine"].get(name) for name in _ENGINE},
    }
