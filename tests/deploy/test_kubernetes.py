"""What no schema sees of the cluster's files: they fit each other, the service's settings and its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from service.front.access import OPEN
from service.front.metrics.catalogue import CATALOGUE, PREFIX
from service.front.settings import Settings, refuse_unknown_variables
from tests.support.serving import SECONDS_TO_END

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"


def read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / name).read_text()))


DEPLOYMENT, SERVICE, MONITOR, SCALER = (
    read(f"base/{name}.yaml")
    for name in ("deployment", "service", "servicemonitor", "horizontalpodautoscaler")
)
POD = DEPLOYMENT["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]


def operations(overlay: str) -> list[dict[str, Any]]:
    (patch,) = read(f"overlays/{overlay}/kustomization.yaml")["patches"]
    assert patch["target"] == {"kind": "Deployment", "name": DEPLOYMENT["metadata"]["name"]}
    return list(yaml.safe_load(patch["patch"]))


def test_a_stopping_pod_has_longer_than_it_waits_and_drains() -> None:
    command, seconds = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert POD["spec"]["terminationGracePeriodSeconds"] > float(seconds) + SECONDS_TO_END


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_an_overlay_patches_what_is_there_and_sets_variables_that_the_service_accepts(overlay: str) -> None:
    names = [one["name"] for one in CONTAINER["env"]]
    for operation in operations(overlay):
        *way, last = operation["path"].split("/")[1:]
        found: Any = DEPLOYMENT
        for part in way:
            found = found[int(part) if isinstance(found, list) else part]
        assert operation["op"] == "add" or last in found
        if found is CONTAINER["env"]:
            names.append(operation["value"]["name"])
    assert names.count("LAUNCHBOUND_DEVICE") == 1
    refuse_unknown_variables(dict.fromkeys(names, ""), Settings.model_fields)


def test_kubernetes_adds_no_variable_that_reads_as_a_setting() -> None:
    assert POD["spec"]["enableServiceLinks"] is False


def test_every_selector_port_and_path_finds_what_it_is_for() -> None:
    (port,), (end,), (own,) = CONTAINER["ports"], MONITOR["spec"]["endpoints"], SERVICE["spec"]["ports"]
    assert POD["metadata"]["labels"].items() >= SERVICE["spec"]["selector"].items()
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == SERVICE["spec"]["selector"]
    assert SERVICE["metadata"]["labels"].items() >= MONITOR["spec"]["selector"]["matchLabels"].items()
    assert (own["targetPort"], end["port"]) == (port["name"], own["name"])
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {probe["port"] for probe in probes} == {port["name"]}
    assert {end["path"], *(probe["path"] for probe in probes)} <= OPEN
    assert SCALER["spec"]["scaleTargetRef"]["name"] == DEPLOYMENT["metadata"]["name"]


def test_replicas_follow_a_metric_that_is_exported_and_that_the_adapter_serves() -> None:
    (metric,) = SCALER["spec"]["metrics"]
    asked = metric["pods"]["metric"]["name"]
    assert asked in {PREFIX + row.name for row in CATALOGUE if row.kind == "gauge" and not row.labels}
    (rule,) = read("prometheus-adapter.yaml")["rules"]["custom"]
    assert rule["name"] == {"matches": asked, "as": asked}
    assert rule["seriesQuery"].partition("{")[0] == asked
