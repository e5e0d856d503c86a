"""Every query of every panel and rule answers, on a real Prometheus that scraped the real service."""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dashboards.boards import boards
from dashboards.panels import DEFAULT_SLO
from dashboards.promql import SHOWN, mean
from service.front.metrics.catalogue import CATALOGUE, PREFIX
from tests.stack import running
from tests.stack.running import Stack, TimeSeries

pytestmark = pytest.mark.stack

NEEDS_A_GPU = frozenset(
    {
        "Dispatch against device span",
        "Device span p95",
        "Sync wait",
        "Decode step p95",
        "Decode step on the device",
        "Profiled kernels",
        "Dispatch after the profiler",
        "Graph replays",
        "Graphs captured",
        "Allocator",
        "Allocator peak",
        "Allocator retries",
        "Failed allocations",
    }
)
"""Panels whose series only exist on CUDA."""

PARTS_THAT_NEED_A_GPU = frozenset({"sync wait", "kernels", "launches"})
"""Queries, by legend, of panels that otherwise have data on a CPU as well."""

NEEDS_NVIDIAS_EXPORTER = frozenset({"GPU utilisation"})
"""Panels of series that NVIDIA's exporter provides."""


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query of one panel; `legend` is its template, or the column it fills."""

    board: str
    panel: str
    letter: str
    legend: str
    expr: str

    @property
    def needs_a_gpu(self) -> bool:
        return self.panel in NEEDS_A_GPU or self.legend in PARTS_THAT_NEED_A_GPU

    @property
    def needs_more(self) -> bool:
        return self.needs_a_gpu or self.panel in NEEDS_NVIDIAS_EXPORTER

    def __str__(self) -> str:
        return f"{self.board}: {self.panel} {self.letter}"


def panel_queries() -> list[PanelQuery]:
    return [
        PanelQuery(
            name.removesuffix(".json"),
            panel["title"],
            target["refId"],
            target["legendFormat"],
            target["expr"],
        )
        for name, text in boards().items()
        for panel in json.loads(text)["panels"]
        for target in panel.get("targets", [])
    ]


def filled(
    expr: str, window: str, job: str = ".*", instance: str = ".*", mode: str = ".*", slo: str = "0.1"
) -> str:
    """`expr` with values for its variables; `window` stands for both of Grafana's intervals."""
    values = {
        "__rate_interval": window,
        "__range": window,
        "instance": instance,
        "job": job,
        "mode": mode,
        "slo": slo,
    }
    for name, value in values.items():
        # As Grafana does: backslashes are doubled inside a PromQL string.
        expr = expr.replace(f"${name}", value.replace("\\", "\\\\"))
    return expr


WINDOW = "10m"
OVERVIEW = json.loads(boards()["overview.json"])
VARIABLES = [variable for variable in OVERVIEW["templating"]["list"] if variable["type"] == "query"]
ANNOTATIONS = OVERVIEW["annotations"]["list"]


def ask(stack: Stack, expr: str, instance: str | None) -> list[TimeSeries]:
    """The answer for one instance (None: for all), over a window that holds the whole load."""
    pattern = ".*" if instance is None else re.escape(instance)
    return stack.prometheus.query(filled(expr, instance=pattern, window=WINDOW), stack.at)


@pytest.mark.parametrize("question", panel_queries(), ids=str)
def test_a_query_answers_with_the_labels_of_its_legend(stack: Stack, question: PanelQuery) -> None:
    """Of a CPU service under load, or of the page of a GPU service where only that has the series."""
    answer = ask(stack, question.expr, stack.gpu if question.needs_more else stack.service)
    assert answer
    for sample in answer:
        assert not any(math.isnan(value) for _, value in sample.points)
        assert sample.labels.keys() >= set(re.findall(r"{{(\w+)}}", question.legend))


@pytest.mark.parametrize("instance", ["service", "gpu"])
def test_the_shown_parts_stack_to_the_mean_request(stack: Stack, instance: str) -> None:
    address = getattr(stack, instance)
    parts = [question for question in panel_queries() if question.panel == "Where a mean request went"]
    stacked: Counter[str] = Counter()
    for part in parts:
        for sample in ask(stack, part.expr, address):
            stacked[sample.labels["mode"]] += sample.points[0][1]
    for sample in ask(stack, mean("request_duration_seconds", window=SHOWN), address):
        assert stacked[sample.labels["mode"]] == pytest.approx(sample.points[0][1], rel=1e-6)


@pytest.mark.parametrize("name", [variable["name"] for variable in VARIABLES])
def test_a_variable_finds_values(stack: Stack, name: str) -> None:
    (definition,) = [variable["definition"] for variable in VARIABLES if variable["name"] == name]
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", definition)
    assert found
    values = {sample.labels[found[2]] for sample in ask(stack, f"group by ({found[2]}) ({found[1]})", None)}
    expected = {
        "job": {"launchbound"},
        "instance": {stack.service, stack.gpu},
        "mode": {*running.MODES, "reduce-overhead", "fallback"},
        "slo": {DEFAULT_SLO, "+Inf"},
    }
    assert values >= expected[name]


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=lambda annotation: annotation["name"])
def test_an_annotation_marks_what_happened(stack: Stack, annotation: dict[str, str]) -> None:
    now = time.time()
    samples = stack.prometheus.query_range(filled(annotation["expr"], window=WINDOW), now - 600, now, 1)
    assert samples
    for sample in samples:
        assert sample.labels.keys() >= set(re.findall(r"{{(\w+)}}", annotation["titleFormat"]))


# ---------------------------------------------------------------- exemplars


def test_prometheus_has_for_each_mode_a_trace_that_the_service_still_keeps(stack: Stack) -> None:
    (shown,) = [question for question in panel_queries() if question.panel == "Latency p95"]
    expr, now = filled(shown.expr, window="1m"), time.time()
    found = [
        (series, one)
        for series, one in stack.prometheus.exemplars(expr, now - 600, now)
        if "trace_id" in one["labels"] and series["instance"] == stack.service
    ]
    assert {series["mode"] for series, _ in found} == {*running.MODES}
    for series, one in found:
        assert 0 < float(one["value"]) < float(series["le"])
        status, trace = running.get(f"http://{stack.service}/v1/traces/{one['labels']['trace_id']}")
        assert status == 200
        assert '"traceEvents"' in trace


# ---------------------------------------------------------------- every series

STILL = {
    "requests_in_progress": "back at 0 when the load is over",
    "queue_depth": "back at 0 when the load is over",
    "device_bound_index": "a share of samples, which can stay as it is",
    "graph_breaks": "a fault",
    "recompiles": "a fault",
    "fallbacks": "a fault",
    "engine_restarts": "a fault",
    "connections": "back at what it was when the load is over",
    "connections_max": "a limit",
    "engine_up": "a state",
    "engine_involuntary_switches": "may be 0 on a quiet machine",
    "compile_seconds": "measured once, at warm-up",
    "step_operators": "a property of the mode, the same in every step",
    "mode_ready": "a state",
    "mode_failed": "a state",
    "mode_parity_max_abs_logit_difference": "measured once, at warm-up",
    "mode_effective_info": "a state",
    "warmup_seconds": "measured once, at warm-up",
    "build_info": "a state",
    "model_info": "a state",
}
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def by_family(page: str) -> dict[str, Series]:
    families: dict[str, Series] = defaultdict(dict)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            families[family.name.removeprefix(PREFIX)][sample.name, frozenset(sample.labels.items())] = (
                sample.value
            )
    return families


def test_every_family_moves_in_every_mode_unless_it_is_listed(stack: Stack) -> None:
    before, after = by_family(stack.before), by_family(stack.after)
    for name, series in after.items():
        if name in STILL or not name.startswith(tuple(row.name.removesuffix("_total") for row in CATALOGUE)):
            continue
        moved = {key for key, value in series.items() if value != before[name].get(key)}
        modes = {dict(labels).get("mode") for _, labels in moved}
        assert modes >= (set(running.MODES) if "mode" in dict(next(iter(series))[1]) else {None}), name
