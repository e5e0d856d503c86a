"""The prompts that load tests send: Python snippets of this repository, or the user's own file."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Literal, get_args

PROMPT_FILE = Path(__file__).with_name("prompts.jsonl")

PromptSet = Literal["short", "any", "long"]
PROMPT_SETS: tuple[PromptSet, ...] = get_args(PromptSet)

SHORT_CHARACTERS = 160
"""At most this long a snippet is `short`: one prefill chunk of 64 tokens."""

LONG_CHARACTERS = 900
"""At least this long is a `long` prompt, several snippets in one: about five prefill chunks."""


class PromptError(ValueError):
    """A prompt file that cannot be used; the message names the line and the remedy."""


def read_prompts(path: Path | str = PROMPT_FILE) -> list[str]:
    """The texts of a JSON-lines file with one `{"text": "…"}` per line.

    Raises PromptError where the file is missing, empty, or a line is something else.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"cannot read prompts from {path}: {error}") from error
    texts = [_text(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not texts:
        raise PromptError(f'{path} holds no prompt: write one {{"text": "…"}} per line')
    return texts


def _text(path: Path | str, number: int, line: str) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError) as error:
        raise PromptError(f'{path}, line {number}: expected {{"text": "…"}}, found {line[:60]!r}') from error
    if not isinstance(text, str) or not text:
        raise PromptError(f"{path}, line {number}: `text` must be a non-empty string")
    return text


def select(texts: list[str], name: PromptSet) -> list[str]:
    """The set called `name` made of `texts`; never empty for a non-empty list.

    `short`: up to SHORT_CHARACTERS, or the shortest one where none is that short. `any`: all. `long`:
    consecutive texts joined until each is at least LONG_CHARACTERS long.
    """
    if name == "any":
        return texts
    if name == "short":
        return [text for text in texts if len(text) <= SHORT_CHARACTERS] or [min(texts, key=len)]
    return [_joined(texts, start) for start in range(len(texts))]


def _joined(texts: list[str], start: int) -> str:
    text = texts[start]
    index = start
    while len(text) < LONG_CHARACTERS:
        index += 1
        text += "\n\n\n" + texts[index % len(texts)]
    return text


def draw(texts: list[str], count: int, seed: str) -> list[str]:
    """`count` of `texts`, drawn by `seed` without repeats as long as there are enough."""
    random = Random(seed)
    drawn = list[str]()
    while len(drawn) < count:
        drawn += random.sample(texts, min(count - len(drawn), len(texts)))
    return drawn
