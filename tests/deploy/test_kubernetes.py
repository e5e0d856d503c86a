"""What the overlays give a cluster: valid, as closed as the compose stack, and consistent in itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import kustomization
from deploy.kustomization import rendered
from service.front.access import OPEN
from service.front.metrics.catalogue import CATALOGUE, PREFIX
from service.front.settings import PREFIX as SETTING
from service.front.settings import Settings, refuse_unknown_variables
from tests.support.serving import SECONDS_TO_END

ROOT = Path(__file__).parents[2]
OVERLAYS = {path.name: {one["kind"]: one for one in rendered(path)} for path in kustomization.OVERLAYS}
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
AS_COMPOSE = {"cpu": "service", "gpu": "service-gpu"}
DOCKERFILE = (ROOT / "Dockerfile").read_text()
LABELS = {"app.kubernetes.io/name": "launchbound"}
each = pytest.mark.parametrize("name", OVERLAYS)


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = OVERLAYS[name]["Deployment"]["spec"]["template"]["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    (one,) = pod(name)["containers"]
    return dict(one)


def environment(name: str) -> dict[str, Any]:
    return {one["name"]: one for one in container(name)["env"]}


def megabytes(size: str) -> int:
    """Of Kubernetes ("6Gi") or compose ("${MEMORY:-6g}")."""
    found = re.search(r"(\d+)G", size.upper())
    assert found
    return int(found[1]) * 1024


def test_there_is_an_overlay_for_cpus_and_one_for_gpus() -> None:
    assert OVERLAYS.keys() == AS_COMPOSE.keys()
    for resources in OVERLAYS.values():
        assert resources.keys() == {
            "Deployment",
            "Service",
            "ServiceMonitor",
            "HorizontalPodAutoscaler",
            "NetworkPolicy",
            "PodDisruptionBudget",
        }


@each
def test_a_pod_may_write_and_do_no_more_than_it_needs(name: str) -> None:
    security = container(name)["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert not pod(name)["automountServiceAccountToken"]
    of_pod = pod(name)["securityContext"]
    assert of_pod["runAsNonRoot"]
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert f"USER {of_pod['runAsUser']}\n" in DOCKERFILE
    assert not pod(name).keys() & {"hostNetwork", "hostPID", "hostIPC"}


@each
def test_what_is_written_lies_on_volumes_where_libraries_can_be_loaded_from(name: str) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in container(name)["volumeMounts"]}
    assert mounts.keys() == {"/cache", "/tmp"}
    assert "LAUNCHBOUND_CACHE_FOLDER=/cache/" in DOCKERFILE
    volumes = {volume["name"]: volume["emptyDir"] for volume in pod(name)["volumes"]}
    assert volumes[mounts["/tmp"]] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert COMPOSE["service"]["tmpfs"] == ["/tmp:exec,mode=1777,size=1g"]
    assert volumes[mounts["/cache"]]["sizeLimit"]


@each
def test_memory_is_limited_as_in_compose_and_cpu_time_is_not(name: str) -> None:
    resources = container(name)["resources"]
    theirs = COMPOSE[AS_COMPOSE[name]]["deploy"]["resources"]["limits"]["memory"]
    assert megabytes(resources["limits"]["memory"]) == megabytes(theirs)
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert "cpu" not in resources["limits"]
    assert int(resources["requests"]["cpu"]) >= 2


def test_a_gpu_is_asked_for_where_it_is_used() -> None:
    assert container("gpu")["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert environment("gpu")["LAUNCHBOUND_DEVICE"]["value"] == "cuda"
    assert "nvidia.com/gpu" not in container("cpu")["resources"]["limits"]
    assert environment("cpu")["LAUNCHBOUND_DEVICE"]["value"] == "cpu"


@each
def test_images_are_those_that_compose_builds(name: str) -> None:
    assert container(name)["image"] == COMPOSE[AS_COMPOSE[name]]["image"]


@each
def test_alive_is_asked_of_what_must_not_be_killed_while_it_compiles_and_ready_of_what_gets_requests(
    name: str,
) -> None:
    one = container(name)
    asked = {kind: one[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["path"] for kind, probe in asked.items()} == {
        "startup": "/health/live",
        "liveness": "/health/live",
        "readiness": "/health/ready",
    }
    assert {probe["path"] for probe in asked.values()} <= OPEN
    assert {probe["port"] for probe in asked.values()} == {one["ports"][0]["name"]}
    assert f"EXPOSE {one['ports'][0]['containerPort']}\n" in DOCKERFILE


@each
def test_a_stopping_pod_has_longer_than_it_waits_and_drains(name: str) -> None:
    command, seconds = container(name)["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert pod(name)["terminationGracePeriodSeconds"] > float(seconds) + SECONDS_TO_END


@each
def test_the_service_gets_only_variables_that_it_accepts_and_none_that_kubernetes_makes_up(name: str) -> None:
    refuse_unknown_variables(environment(name), Settings.model_fields)
    assert environment(name)["LAUNCHBOUND_API_KEY"]["valueFrom"]["secretKeyRef"]["name"]
    # Of a Service with this name Kubernetes would set LAUNCHBOUND_PORT and LAUNCHBOUND_SERVICE_HOST.
    assert OVERLAYS[name]["Service"]["metadata"]["name"].upper() + "_" == SETTING
    assert pod(name)["enableServiceLinks"] is False


@each
def test_the_pod_may_be_called_by_every_name_of_its_service(name: str) -> None:
    service = OVERLAYS[name]["Service"]["metadata"]["name"]
    hosts = environment(name)["LAUNCHBOUND_ALLOWED_HOSTS"]["value"].split(",")
    ends = ("", ".$(POD_NAMESPACE)", ".$(POD_NAMESPACE).svc", ".$(POD_NAMESPACE).svc.cluster.local")
    assert hosts == [service + end for end in ends]
    names = [one["name"] for one in container(name)["env"]]
    assert names.index("POD_NAMESPACE") < names.index("LAUNCHBOUND_ALLOWED_HOSTS")


@each
def test_two_engines_never_share_a_node(name: str) -> None:
    (term,) = pod(name)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["namespaceSelector"] == {}
    assert term["labelSelector"]["matchLabels"] == LABELS


@each
def test_a_new_pod_is_ready_before_an_old_one_goes(name: str) -> None:
    spec = OVERLAYS[name]["Deployment"]["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert "replicas" not in spec


@each
def test_every_selector_finds_what_it_is_for(name: str) -> None:
    resources = OVERLAYS[name]
    deployment, service = resources["Deployment"], resources["Service"]
    assert deployment["spec"]["selector"]["matchLabels"] == LABELS
    assert deployment["spec"]["template"]["metadata"]["labels"].items() >= LABELS.items()
    assert service["spec"]["selector"] == LABELS
    assert service["spec"]["ports"][0]["targetPort"] == container(name)["ports"][0]["name"]
    monitor = resources["ServiceMonitor"]["spec"]
    assert service["metadata"]["labels"].items() >= monitor["selector"]["matchLabels"].items()
    assert [end["port"] for end in monitor["endpoints"]] == [service["spec"]["ports"][0]["name"]]
    assert {end["path"] for end in monitor["endpoints"]} <= OPEN
    scaled = resources["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert scaled == {
        "apiVersion": deployment["apiVersion"],
        "kind": "Deployment",
        "name": deployment["metadata"]["name"],
    }


@each
def test_a_pod_is_reached_at_its_port_alone_by_named_namespaces_and_reaches_nobody(name: str) -> None:
    policy = OVERLAYS[name]["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == LABELS
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["egress"] == []
    (rule,) = policy["ingress"]
    assert [port["port"] for port in rule["ports"]] == [port["name"] for port in container(name)["ports"]]
    assert {"podSelector": {}} in rule["from"]
    namespaces = [peer["namespaceSelector"] for peer in rule["from"] if "namespaceSelector" in peer]
    assert len(namespaces) + 1 == len(rule["from"])
    for selector in namespaces:
        ((label, value),) = selector["matchLabels"].items()
        assert f"{label}={value}" in (ROOT / "docs/kubernetes.md").read_text()


@each
def test_a_drain_takes_one_pod_at_a_time_and_can_always_go_on(name: str) -> None:
    budget = OVERLAYS[name]["PodDisruptionBudget"]["spec"]
    assert budget["selector"]["matchLabels"] == LABELS
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@each
def test_replicas_follow_a_metric_that_is_exported_and_that_the_adapter_serves(name: str) -> None:
    (metric,) = OVERLAYS[name]["HorizontalPodAutoscaler"]["spec"]["metrics"]
    asked = metric["pods"]["metric"]["name"]
    assert asked in {PREFIX + row.name for row in CATALOGUE if row.kind == "gauge" and not row.labels}
    adapter = kustomization.FOLDER / "prometheus-adapter.yaml"
    (rule,) = yaml.safe_load(adapter.read_text())["rules"]["custom"]
    assert rule["name"] == {"matches": asked, "as": asked}
    assert rule["seriesQuery"].partition("{")[0] == asked
    assert rule["resources"]["overrides"].keys() == {"namespace", "pod"}
