"""The query by which prometheus-adapter reads the queue depth of pods: accepted, and right."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from dashboards.stack import CONFIGURATION

pytestmark = pytest.mark.stack

RULES = CONFIGURATION.parents[1] / "deploy" / "kubernetes" / "prometheus-adapter.yaml"


def test_the_adapters_query_is_the_mean_queue_of_each_pod(promtool: str, tmp_path: Path) -> None:
    (rule,) = yaml.safe_load(RULES.read_text())["rules"]["custom"]
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
