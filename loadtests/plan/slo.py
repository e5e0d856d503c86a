"""Service-level objectives: what a request has to keep to for it to count as served in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from loadtests.plan.errors import PlanError

Seconds = Annotated[float, Meta(gt=0)]

_KEYS = {"ttft": "ttft_seconds", "tpot": "tpot_seconds", "e2e": "e2e_seconds", "share": "share"}
_FORM = "write it as ttft=0.05,tpot=0.01,e2e=0.1,share=0.99 (seconds; at least one of the first three)"


class Slo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a request's latencies in seconds, from the instant at which it was due; None: no limit.

    `share` of a visit's requests must keep to all of them for its rate to count as served. The time to first
    token is the wait until the request was sent plus the service's own clock, which begins when the body is
    parsed: it leaves out HTTP on the way in, some tenths of a millisecond. The time per output token is that
    of the tokens after the first; a request of one token has none.
    """

    ttft_seconds: Seconds | None = None
    tpot_seconds: Seconds | None = None
    e2e_seconds: Seconds | None = None
    share: Annotated[float, Meta(gt=0, le=1)] = 0.95


def parse_slo(text: str) -> Slo:
    """The objectives of a text like `ttft=0.05,tpot=0.01,e2e=0.1,share=0.99`. Raises PlanError."""
    values: dict[str, float] = {}
    for item in text.split(","):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in _KEYS or key in values:
            raise PlanError(f"'{item.strip()}' in the SLO '{text}' is unknown or there twice: {_FORM}")
        try:
            values[key] = float(value)
        except ValueError as error:
            raise PlanError(f"'{value}' in the SLO '{text}' is no number: {_FORM}") from error
    return slo_of(values)


def slo_of(values: Mapping[str, float]) -> Slo:
    """The objectives of a plan file's table `[slo]`. Raises PlanError for none, or one out of range."""
    try:
        slo = msgspec.convert({_KEYS[key]: value for key, value in values.items()}, Slo)
    except msgspec.ValidationError as error:
        raise PlanError(f"the SLO is not possible ({error}): {_FORM}") from error
    if slo.ttft_seconds is slo.tpot_seconds is slo.e2e_seconds is None:
        raise PlanError(f"the SLO limits nothing: {_FORM}")
    return slo
