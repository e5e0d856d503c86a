"""Claims that no range decides: about dispatch keys, from real calls, and about what a wait costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from service.anatomy.lessons.answer import Answer, Quoted
from service.anatomy.lessons.findings import Findings
from service.anatomy.lessons.readings import needs_gpu, probe_difference

SYNC_PROBE = "sync-point"


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


def sync_costs(findings: Findings) -> Answer:
    """What an `.item()` in the step adds: it costs where the probe itself finds the step slower."""
    found = findings.probes.get(SYNC_PROBE)
    if found is None:
        return Answer((), "cannot be measured here", needs_gpu(findings))
    added = Quoted(-math.inf, math.inf, " µs", probe_difference(SYNC_PROBE)).answer(findings)
    return Answer(added.values, "agrees" if found.verdict == "slower" else "disagrees")


def _place(keys: Sequence[str], kind: str) -> int | None:
    return next((place for place, key in enumerate(keys) if key.startswith(kind)), None)
