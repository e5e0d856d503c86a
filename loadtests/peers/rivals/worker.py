"""The rival's end of the pipe: JSON lines in on standard input, one JSON line out for each.

The first line is the `Task`, answered by what was set and which versions run; each line after it is a batch
of equally long prompts, answered by its new tokens and the seconds that the whole call took. A line that
cannot be answered is answered by `{"error": …}`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TextIO

Tokens = list[list[int]]

Call = Callable[[Tokens, int], Tokens]
"""From prompts and the number of new tokens to the new tokens of each prompt."""


@dataclass(frozen=True, slots=True)
class Task:
    """`folder` holds the model called `model` as Hugging Face's; `made`, of this rival alone, keeps what it
    converts. Model calls run on `cpus`, with as many prompts as one of `batches`. `texts` are to predict.
    """

    model: str
    folder: Path
    made: Path
    cpus: list[int]
    batches: list[int]
    texts: list[str]
    variant: str
    prompt_tokens: int
    new_tokens: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rival that can be called; `settings` says how it was set up, `packages` what it consists of.

    `quality`, of one that need not have the reference's tokens: the fields of `loadtests.peers.results`.
    """

    call: Call
    settings: Mapping[str, object]
    packages: Sequence[str]
    quality: Mapping[str, float] | None = None


def serve(load: Callable[[Task], Loaded]) -> None:
    """Answer the lines of standard input until it ends."""
    # Standard output is for answers alone: what libraries print goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    first = sys.stdin.readline()
    if not first:
        return
    try:
        fields = json.loads(first)
        task = Task(**{**fields, "folder": Path(fields["folder"]), "made": Path(fields["made"])})
        pin(task.cpus)
        loaded = load(task)
        # Again: libraries start threads while they load.
        pin(task.cpus)
        versions = {name: version(name) for name in loaded.packages}
    except Exception as error:  # noqa: BLE001 - whatever the library raises is the row's reason
        answer(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    answer(answers, {"settings": dict(loaded.settings), "versions": versions, "quality": loaded.quality})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer(answers, _timed(loaded.call, asked["tokens"], asked["new_tokens"]))
        except Exception as error:  # noqa: BLE001
            answer(answers, {"error": f"{type(error).__name__}: {error}"})


def _timed(call: Call, tokens: Tokens, new_tokens: int) -> dict[str, object]:
    began = perf_counter()
    found = call(tokens, new_tokens)
    return {"seconds": perf_counter() - began, "tokens": found}


def pin(cpus: list[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cpus)


def answer(answers: TextIO, document: Mapping[str, object]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()
