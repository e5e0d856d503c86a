"""The traces that request histograms point to, as OpenMetrics writes them after a bucket."""

from __future__ import annotations

from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from service.front.request_timing import RequestTiming

TRACE_LABEL = "trace_id"


def trace_of(timing: RequestTiming) -> str | None:
    """The id under which `GET /v1/traces/{id}` has this request's trace.

    None where it was not profiled, or its trace was not kept.
    """
    # An empty profile is of a trace that the disk did not take.
    return timing.job.id if timing.outcome.profile else None


def exemplar(trace: str, seconds: float, at: float) -> Exemplar:
    """A request of `seconds` that was recorded in `trace`, and ended `at` (seconds since the epoch)."""
    return Exemplar({TRACE_LABEL: trace}, seconds, round(at, 3))


def written(one: Exemplar) -> str:
    """What follows a bucket's value in OpenMetrics. A trace's id has nothing that needs an escape."""
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(one.labels.items()))
    return f" # {{{labels}}} {floatToGoString(one.value)} {one.timestamp}"
