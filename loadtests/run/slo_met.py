"""Whether a request met an SLO."""

from __future__ import annotations

from loadtests.plan.slo import Slo
from loadtests.run.rows import RequestRow


def meets(slo: Slo, row: RequestRow) -> bool:
    """Whether `row` meets all limits of `slo`, from the intended start; a failed or rejected one does not."""
    if not row.ok:
        return False
    first, total = row.time_to_first_token_seconds, row.total_seconds
    late = max(0.0, row.start - row.intended_start)
    ttft = None if first is None else late + first
    tpot = None
    if first is not None and total is not None and row.new_tokens > 1:
        tpot = (total - first) / (row.new_tokens - 1)
    return slo.met(ttft, tpot, row.latency_from_intended_seconds)
