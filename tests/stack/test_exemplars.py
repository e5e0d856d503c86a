"""Traces of profiled requests on their way: exposition, a real Prometheus, and back to the service."""

from __future__ import annotations

import time

import pytest

from tests.stack import running
from tests.stack.panel_queries import filled, panel_queries
from tests.stack.running import Stack

pytestmark = pytest.mark.stack


def test_prometheus_has_for_each_mode_a_trace_that_the_service_still_keeps(stack: Stack) -> None:
    (shown,) = [question for question in panel_queries() if question.panel == "Latency p95"]
    expr, now = filled(shown.expr, window="1m"), time.time()
    found = [one for one in stack.prometheus.exemplars(expr, now - 600, now) if "trace_id" in one.labels]
    of_service = [one for one in found if one.series["instance"] == stack.service]
    assert {one.series["mode"] for one in of_service} == {*running.MODES}
    for one in of_service:
        assert 0 < one.value < float(one.series["le"])
        status, trace = running.get(f"http://{stack.service}/v1/traces/{one.labels['trace_id']}")
        assert status == 200
        assert '"traceEvents"' in trace
