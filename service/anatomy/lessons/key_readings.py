"""Answers claims about dispatch keys from real calls: their order, and which modes still pass autograd's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from service.anatomy.lessons.answer import Answer
from service.anatomy.lessons.findings import Findings


def autocast_is(above: bool) -> Callable[[Findings], Answer]:
    """Whether autocast's key is handled before autograd's (`above`), or after it."""

    def answer(findings: Findings) -> Answer:
        keys = next(one.keys for one in findings.keys if one.state == "eager, autocast")
        autocast, autograd = _place(keys, "Autocast"), _place(keys, "Autograd")
        order = f"`{' → '.join(keys)}`"
        if autocast is None or autograd is None:
            return Answer((order,), "cannot be measured here", "this call does not pass both keys")
        return Answer((order,), "agrees" if (autocast < autograd) == above else "disagrees")

    return answer


def autograd_keys_are(kept: bool, mode: str) -> Callable[[Findings], Answer]:
    """Whether calls of the step of `mode` pass a key of autograd (`kept`), or none does."""

    def answer(findings: Findings) -> Answer:
        step = findings.steps[mode]
        value = f"{step.autograd} of {step.calls} calls pass one"
        return Answer((value,), "agrees" if (step.autograd > 0) == kept else "disagrees")

    return answer


def _place(keys: Sequence[str], kind: str) -> int | None:
    return next((place for place, key in enumerate(keys) if key.startswith(kind)), None)
