"""Configuration and rules: accepted by Prometheus' own tool, each tested, each answering on a real server."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from dashboards.stack import CONFIGURATION
from tests.stack.running import Stack
from tests.support.serving import until

pytestmark = pytest.mark.stack

FOLDER = CONFIGURATION.parent
RULES = [
    rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]
]
RECORDED = [rule["record"] for rule in RULES if "record" in rule]
ALERTS = [rule["alert"] for rule in RULES if "alert" in rule]


def run(promtool: str, *arguments: str, given: str | None = None) -> str:
    ran = subprocess.run(
        [promtool, *arguments], input=given, capture_output=True, text=True, cwd=FOLDER, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "rules.yml"],
        ["test", "rules", "rules_test.yml"],
    ],
    ids=" ".join,
)
def test_promtool_is_content(promtool: str, arguments: list[str]) -> None:
    run(promtool, *arguments)


def test_promtool_finds_no_fault_with_the_exported_metrics(promtool: str, stack: Stack) -> None:
    assert run(promtool, "check", "metrics", given=stack.after) == ""


def test_every_rule_has_a_unit_test() -> None:
    tests = yaml.safe_load((FOLDER / "rules_test.yml").read_text())["tests"]
    fired = {
        case["alertname"] for test in tests for case in test.get("alert_rule_test", []) if case["exp_alerts"]
    }
    tested = " ".join(case["expr"] for test in tests for case in test.get("promql_expr_test", []))
    assert fired == set(ALERTS)
    assert all(name in tested for name in RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_rule_answers_under_load(stack: Stack, name: str) -> None:
    until(lambda: bool(stack.prometheus.query(f'{name}{{instance="{stack.service}"}}')), name, 20)


def test_no_rule_fails_and_no_alert_fires_on_a_healthy_service(stack: Stack) -> None:
    for rule in stack.prometheus.rules():
        assert rule["health"] == "ok", rule
    firing = stack.prometheus.query(f'ALERTS{{alertstate="firing", instance="{stack.service}"}}')
    assert firing == []


# ---------------------------------------------------------------- the rule of prometheus-adapter

ADAPTER = CONFIGURATION.parents[1] / "deploy" / "kubernetes" / "prometheus-adapter.yaml"


def test_the_adapters_query_is_the_mean_queue_of_each_pod(promtool: str, tmp_path: Path) -> None:
    (rule,) = yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]
    expr = rule["metricsQuery"]
    for template, value in {
        "<<.Series>>": "launchbound_queue_depth",
        "<<.LabelMatchers>>": 'namespace="ours",pod=~"one|two"',
        "<<.GroupBy>>": "pod",
    }.items():
        expr = expr.replace(template, value)
    depths = {("ours", "one"): "0 8 0 8", ("ours", "two"): "6 6 6 6", ("theirs", "one"): "90 90 90 90"}
    case = {
        "interval": "15s",
        "input_series": [
            {"series": f'launchbound_queue_depth{{namespace="{space}",pod="{pod}"}}', "values": values}
            for (space, pod), values in depths.items()
        ],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": "45s",
                "exp_samples": [{"labels": '{pod="one"}', "value": 4}, {"labels": '{pod="two"}', "value": 6}],
            }
        ],
    }
    (tmp_path / "case.yml").write_text(json.dumps({"evaluation_interval": "15s", "tests": [case]}))
    ran = subprocess.run(
        [promtool, "test", "rules", "case.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


# ---------------------------------------------------------------- replicas

MANUAL = Path(__file__).parents[2] / "docs" / "replicas.md"


def test_the_documented_job_is_one_that_prometheus_takes(tmp_path: Path, promtool: str) -> None:
    job = re.search(r"```yaml\n(scrape_configs:.*?)```", MANUAL.read_text(), re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(job[1])
    run(promtool, "check", "config", str(tmp_path / "prometheus.yml"))
