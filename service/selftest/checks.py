"""The checks by name, in the order in which they run, and the request that all of them send."""

from __future__ import annotations

from collections.abc import Iterable

ENGINE_CHECKS: dict[str, str] = {
    "injected": "injected work arrives on its side",
    "sampling-rate": "shares do not depend on how often is sampled",
    "plain-kernels": "kernel time is equal in the modes that run the same kernels",
    "unclassified": "the rules know the code that steps are in",
    "instructions": "equal instructions in kernels, and the host's fall from mode to mode",
    "background": "sampling in the background costs at most 1 % of a step",
    "asked-work": "a step does the work that is asked",
    "own-work": "the engine's own work per decode step",
    "instrumentation": "measuring adds at most 1 % to a request",
    "minimal-loop": "the service's code costs at most 3 % over a minimal loop",
    "cuda": "kernel time and graph launches on a GPU",
}
"""Run in a worker process, on the engine's cores, without a service."""

SERVICE_CHECKS: dict[str, str] = {
    "parts": "the parts of a request",
    "added": "what the service adds to a model call",
    "saturation": "a saturated engine spends its time in model steps",
    "scrape": "time of a scrape under load",
    "concurrency": "step time under load",
    "eager-eager": "no difference between eager and eager",
    "twice": "the same sweep twice",
    "served-samples": "a service answers with the shares of its steps",
}
"""Run over HTTP against a service started for them; last what runs steps in this process as well."""

ALL_CHECKS = {**ENGINE_CHECKS, **SERVICE_CHECKS}

PROMPT = "def mean(values):\n    total = 0\n    for value in values:\n"
NEW_TOKENS = 32
"""The request that all checks send, over HTTP and in process alike."""


def choose_checks(only: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Names to run in the worker and over HTTP; None: all. Raises ValueError for an unknown name."""
    names = list(only) if only is not None else list(ALL_CHECKS)
    if unknown := [name for name in names if name not in ALL_CHECKS]:
        raise ValueError(f"no check '{unknown[0]}': try some of {', '.join(ALL_CHECKS)}")
    return [name for name in ENGINE_CHECKS if name in names], [
        name for name in SERVICE_CHECKS if name in names
    ]
