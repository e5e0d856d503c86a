"""Service level objectives: the latencies that requests must meet for their rate to count as served."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from loadtests.plan.errors import PlanError

LONGEST_SECONDS = 3600.0
"""A longer limit is no limit, and infinity could not be written to a plan file."""

_EXAMPLE = "ttft=0.05,tpot=0.01,e2e=0.1,share=0.99"

Limit = Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)]
Multiple = Annotated[float, Meta(gt=1, le=1000)]
"""At 1 or below, eager would miss it without any load."""

Share = Annotated[float, Meta(gt=0, le=1)]


class Slo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits in seconds, each counted from the intended start of a request; None: no such limit.

    `e2e_seconds` is for the whole answer (`latency_from_intended_seconds`); `ttft_seconds` for the first
    token: how late the request was sent, plus `time_to_first_token_seconds` of the service, whose clock
    begins when the body is parsed and so leaves out HTTP on the way in, some tenths of a millisecond.
    `tpot_seconds` is for (total - time to first token) / (new tokens - 1). `share` of a visit's requests must
    meet all of them for its rate to count as served; a request that was rejected or failed meets none.

    `e2e_of_eager` is a limit for the whole answer as a multiple of eager's latency at the same work and no
    load, for plans that have to suit any machine: `settled` makes seconds of it, once warm-up has measured
    that latency. Raises PlanError without any limit.
    """

    ttft_seconds: Limit | None = None
    tpot_seconds: Limit | None = None
    e2e_seconds: Limit | None = None
    e2e_of_eager: Multiple | None = None
    share: Share = 0.95

    def __post_init__(self) -> None:
        limits = (self.ttft_seconds, self.tpot_seconds, self.e2e_seconds, self.e2e_of_eager)
        if limits == (None, None, None, None):
            raise PlanError("an SLO without a limit is met by anything: give ttft, tpot or e2e in seconds")

    @property
    def is_settled(self) -> bool:
        """Whether all its limits are known in seconds."""
        return self.e2e_of_eager is None or self.e2e_seconds is not None

    def settled(self, eager_seconds: float) -> Slo:
        """The SLO in seconds, to two digits, where eager takes `eager_seconds` without load."""
        if self.is_settled or self.e2e_of_eager is None:
            return self
        return msgspec.structs.replace(self, e2e_seconds=float(f"{self.e2e_of_eager * eager_seconds:.2g}"))

    @property
    def text(self) -> str:
        """What it asks for, in words."""
        names = (("TTFT", self.ttft_seconds), ("TPOT", self.tpot_seconds), ("the answer", self.e2e_seconds))
        limits = [f"{name} within {most * 1e3:g} ms" for name, most in names if most is not None]
        if self.e2e_of_eager is not None:
            of_eager = f"{self.e2e_of_eager:g} times eager's latency without load"
            limits.append(f"which is {of_eager}" if self.is_settled else f"the answer within {of_eager}")
        return f"{', '.join(limits)}, for {100 * self.share:g} % of the requests"


class SloTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An SLO as plan files and the command line write it: limits in seconds, and the share."""

    ttft: Limit | None = None
    tpot: Limit | None = None
    e2e: Limit | None = None
    e2e_of_eager: Multiple | None = None
    share: Share = 0.95

    @property
    def slo(self) -> Slo:
        """What it says. Raises PlanError without any limit, and with two for the whole answer."""
        if self.e2e is not None and self.e2e_of_eager is not None:
            raise PlanError("e2e and e2e_of_eager are both limits for the whole answer: leave one out")
        return Slo(
            ttft_seconds=self.ttft,
            tpot_seconds=self.tpot,
            e2e_seconds=self.e2e,
            e2e_of_eager=self.e2e_of_eager,
            share=self.share,
        )

    @property
    def text(self) -> str:
        """As the command line takes it: `slo_table` gives it back."""
        given = msgspec.structs.asdict(self).items()
        return ",".join(f"{key}={value}" for key, value in given if value is not None)


def slo_table(text: str) -> SloTable:
    """The table that `text`, such as `ttft=0.05,e2e=0.1`, is in a line. Raises PlanError with the remedy."""
    given = dict[str, str]()
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise PlanError(f"'{part}' is no limit of an SLO: write it as in {_EXAMPLE}, in seconds")
        if key in given:
            raise PlanError(f"the SLO '{text}' has {key} twice: leave one out")
        given[key] = value
    try:
        return msgspec.convert(given, SloTable, strict=False)
    except msgspec.ValidationError as error:
        raise PlanError(f"the SLO '{text}': {error}; write it as in {_EXAMPLE}, in seconds") from error


def parse_slo(text: str) -> Slo:
    """The SLO that `text` says, as `slo_table`. Raises PlanError where a limit is not in seconds."""
    found = slo_table(text).slo
    if not found.is_settled:
        raise PlanError("e2e_of_eager is for sweeps, which measure eager first: give e2e in seconds")
    return found
