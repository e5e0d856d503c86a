"""The prompts that load tests send: Python snippets of this repository."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Literal

PROMPT_FILE = Path(__file__).with_name("prompts.jsonl")

PromptSet = Literal["short", "any", "long"]

SHORT_CHARACTERS = 160
"""At most this long a snippet is `short`: one prefill chunk of 64 tokens."""

LONG_CHARACTERS = 900
"""At least this long is a `long` prompt, several snippets in one: about five prefill chunks."""


def read_prompts() -> list[str]:
    """The snippets, of a file of JSON lines with one `{"text": "…"}` per line."""
    return [json.loads(line)["text"] for line in PROMPT_FILE.read_text(encoding="utf-8").splitlines()]


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
    while len(text) < LONG_CHARACTERS:
        start += 1
        text += "\n\n\n" + texts[start % len(texts)]
    return text


def draw(texts: list[str], count: int, seed: str) -> list[str]:
    """`count` of `texts`, drawn by `seed` without repeats as long as there are enough."""
    random = Random(seed)
    drawn = list[str]()
    while len(drawn) < count:
        drawn += random.sample(texts, min(count - len(drawn), len(texts)))
    return drawn
