"""The model for the rivals, its prompts, and the tokens that every contestant has to repeat."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtests.peers.results import PeersError
from loadtests.plan.prompts import read_prompts
from loadtests.run.folder import REPOSITORY
from service.parent_death import owned

EXPORT_SECONDS = 600.0

TIE = 2e-4
"""Two logits closer than twice the tolerance of float32 (1e-4) may be taken in either order."""


class ReferenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and its greedy completion; `margins` are each token's logit less that of the runner-up."""

    prompt: str
    prompt_tokens: list[int]
    completion: str
    completion_tokens: list[int]
    margins: list[float]


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What `models.hf.reference` says of the model that it exported, in float32."""

    model_hash: str
    parameters: int
    vocabulary: int
    rows: list[ReferenceRow]


def make_reference(model: str, folder: Path, count: int, prompt_tokens: int, new_tokens: int) -> Reference:
    """Export `model` to `folder` in a process of its own, which has torch.

    Raises PeersError where that process fails.
    """
    wanted = {"texts": read_prompts(), "count": count}
    wanted |= {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    done = subprocess.run(
        owned([sys.executable, "-m", "models.hf.reference", model, str(folder)], signal.SIGKILL),
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        timeout=EXPORT_SECONDS,
        cwd=REPOSITORY,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise PeersError((lines or ["the export failed without a message"])[-1])
    return msgspec.json.decode(done.stdout, type=Reference)


def difference(found: Sequence[Sequence[int]], rows: Sequence[ReferenceRow]) -> str | None:
    """How the tokens `found` differ from those of `rows`, by row and position; None where they do not.

    A row may leave the reference at a token whose margin is at most TIE: what follows is another, equally
    greedy text.
    """
    if len(found) != len(rows):
        return f"{len(found)} rows instead of {len(rows)}"
    for index, (tokens, row) in enumerate(zip(found, rows, strict=True)):
        wanted = row.completion_tokens
        if len(tokens) != len(wanted):
            return f"row {index} has {len(tokens)} tokens instead of {len(wanted)}"
        at = next((at for at in range(len(wanted)) if tokens[at] != wanted[at]), None)
        if at is not None and row.margins[at] > TIE:
            return (
                f"row {index}, token {at}: {tokens[at]} instead of {wanted[at]}, "
                f"whose logit leads by {row.margins[at]:.3g}"
            )
    return None


def text_difference(found: Sequence[str], rows: Sequence[ReferenceRow]) -> str | None:
    """The same for a contestant that answers text."""
    if len(found) != len(rows):
        return f"{len(found)} rows instead of {len(rows)}"
    for index, (text, row) in enumerate(zip(found, rows, strict=True)):
        if text != row.completion and min(row.margins) > TIE:
            return f"row {index}: {text[:40]!r}… instead of {row.completion[:40]!r}…"
    return None
