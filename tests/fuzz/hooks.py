"""Loaded by schemathesis: keeps its cases small, and within what only the engine knows to refuse.

Whether a case is valid is judged anew after this, by the schema.
"""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import Case, HookContext

from tests.fuzz.service import LARGEST_BATCH, VOCABULARY

CAPS = {"max_new_tokens": 4, "max_tokens": 4, "repeats": 2}
COMPARISON = {"max_new_tokens": 2, "repeats": 2}
"""Else a comparison runs eight rounds of 32 tokens."""

LONGEST_PROMPT = 64


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """Make the body of a generating request small."""
    if case.method == "POST" and isinstance(case.body, dict):
        case.body = small(case.path, case.body)


def small(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """`body` with few and known tokens; a value of another type, or out of its range, stays as it is."""
    body = {name: smaller(name, value) for name, value in body.items()}
    if path == "/v1/compare":
        return {**COMPARISON, **body}
    return consistent(body) if path == "/v1/completions" else body


def smaller(name: str, value: Any) -> Any:
    """One field of a body."""
    if name in ("prompt", "prompts"):
        return shorter(value)
    return min(value, CAPS[name]) if name in CAPS and is_int(value) else value


def shorter(prompts: Any) -> Any:
    """A prompt, or several, in few characters or in tokens that the model has."""
    if isinstance(prompts, str):
        return prompts[:LONGEST_PROMPT]
    if is_int(prompts) and prompts >= 0:
        return prompts % VOCABULARY
    return [shorter(prompt) for prompt in prompts[:LONGEST_PROMPT]] if isinstance(prompts, list) else prompts


def consistent(body: dict[str, Any]) -> dict[str, Any]:
    """What the schema cannot say: fields of a completion that depend on one another."""
    changed = dict(body)
    prompts, copies = (body.get(name) for name in ("prompt", "n"))
    batch = len(prompts) if isinstance(prompts, list) and prompts and not is_int(prompts[0]) else 1
    if is_int(copies) and copies <= LARGEST_BATCH and batch * copies > LARGEST_BATCH:
        copies = changed["n"] = 1
    return changed


def is_int(value: Any) -> bool:
    """Whether it is an integer to JSON Schema: 4.0 is one, true is none."""
    return value.is_integer() if isinstance(value, float) else type(value) is int
