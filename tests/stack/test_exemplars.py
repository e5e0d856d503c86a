"""Traces of profiled requests on their way: exposition, a real Prometheus, and back to the service."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from urllib.request import Request

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from tests.stack import running
from tests.stack.panel_queries import filled, panel_queries
from tests.stack.running import Stack

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def page(stack: Stack) -> str:
    """The service's exposition in OpenMetrics."""
    asked = Request(f"http://{stack.service}/metrics", headers={"Accept": "application/openmetrics-text"})
    with running.OPENER.open(asked, timeout=10) as answer:
        return str(answer.read(), "utf-8")


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


def test_the_librarys_parser_finds_the_exemplars(page: str) -> None:
    names = {
        family.name
        for family in parse_openmetrics(page)
        for sample in family.samples
        if sample.exemplar and sample.labels["mode"] == "eager"
    }
    assert names >= {f"launchbound_request_{part}_seconds" for part in ("duration", "queue", "kernel")}


@pytest.mark.parametrize(
    ("ruin", "accepted"), [(('{trace_id="', '{trace_id="'), True), (('{trace_id="', "{"), False)]
)
def test_promtool_reads_the_exemplars(
    page: str, promtool: str, tmp_path: Path, ruin: tuple[str, str], accepted: bool
) -> None:
    """Its reader of OpenMetrics is the one of `create-blocks-from`, which wants a time at every sample."""
    lines = []
    for line in page.replace(*ruin).splitlines():
        sample, mark, exemplar = line.partition(" # {")
        lines.append(line if line.startswith("#") else f"{sample} {time.time():.3f}{mark}{exemplar}")
    (tmp_path / "page").write_text("\n".join(lines) + "\n")
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "page", "blocks"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode == 0) == accepted, ran.stderr
