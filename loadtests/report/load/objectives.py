"""Which requests kept to the objectives, and what makes a rate count as served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from loadtests.plan.slo import Slo
from loadtests.report.formatting import listed
from service.statistics.knee import SERVED_SHARE

Kind = Literal["e2e", "ttft", "tpot"]

SECONDS: dict[Kind, pl.Expr] = {
    "e2e": pl.col("latency_from_intended_seconds"),
    "ttft": pl.col("latency_from_intended_seconds")
    - pl.col("latency_seconds")
    + pl.col("time_to_first_token_seconds"),
    "tpot": pl.when(pl.col("new_tokens") > 1).then(
        (pl.col("total_seconds") - pl.col("time_to_first_token_seconds")) / (pl.col("new_tokens") - 1)
    ),
}
"""Latencies of a row, from the instant at which it was due: until its answer, until its first token, and per
token after the first. Null where the service measured no first token, and per token where there is one."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """What a rate is judged by: the objectives `slo`, or without any whether answers keep up."""

    slo: Slo | None

    @property
    def least_share(self) -> float:
        """Of the requests, or of the offered rate, that must be served."""
        return SERVED_SHARE if self.slo is None else self.slo.share

    def limits(self, new_tokens: int) -> dict[Kind, float]:
        """The limits in seconds for requests of `new_tokens`; a single token has no time per further one."""
        if self.slo is None:
            return {}
        all_limits: dict[Kind, float | None] = {
            "e2e": self.slo.e2e_seconds,
            "ttft": self.slo.ttft_seconds,
            "tpot": self.slo.tpot_seconds if new_tokens > 1 else None,
        }
        return {kind: limit for kind, limit in all_limits.items() if limit is not None}

    @property
    def within(self) -> str:
        """The end of a sentence: 'within 100 ms, first token within 50 ms'."""
        if self.slo is None:
            return "before it saturates"
        limits = {
            "within {}": self.slo.e2e_seconds,
            "the first token within {}": self.slo.ttft_seconds,
            "at most {} per further token": self.slo.tpot_seconds,
        }
        shown = [text.format(_milliseconds(limit)) for text, limit in limits.items() if limit is not None]
        return listed(shown)

    @property
    def meaning(self) -> str:
        """What it takes for a rate to count as served."""
        share = f"{100 * self.least_share:.4g} %"
        if self.slo is None:
            return f"A rate counts as served where answers leave at {share} of the rate offered, or more."
        return f"A rate counts as served where at least {share} of the requests are answered {self.within}."


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"
