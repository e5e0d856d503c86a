"""The compose stack as files: valid, hardened, closed to other machines, consistent with what it mounts."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from loadtests.run.exporter import PORT
from service.front.access import LINKED
from service.front.metrics.series import TRACE_LABEL
from service.front.settings import PREFIX, Settings
from service.modes import default_modes
from tests.support.serving import SECONDS_TO_END, running

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROMETHEUS: dict[str, Any] = yaml.safe_load((ROOT / "dashboards/prometheus.yml").read_text())
BUILT_HERE = re.compile(r"launchbound:\w+$")
BY_DIGEST = re.compile(r":v?\d+\.\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}$")
WRITES_ITS_ROOT = {"dcgm-exporter"}
NEEDS_A_CAPABILITY = {"dcgm-exporter": ["SYS_ADMIN"]}


def published_port(service: str) -> int:
    return int(SERVICES[service]["ports"][0].rsplit(":", 1)[1])


def test_the_base_image_is_named_by_release_and_digest() -> None:
    (base,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert BY_DIGEST.search(base)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_may_write_open_and_do_no_more_than_it_needs_and_is_reached_from_here_only(
    name: str,
) -> None:
    definition = SERVICES[name]
    assert all(port.startswith("127.0.0.1:") for port in definition.get("ports", []))
    assert BUILT_HERE.match(definition["image"]) or BY_DIGEST.search(definition["image"])
    assert definition.get("read_only", False) or name in WRITES_ITS_ROOT
    assert definition["cap_drop"] == ["ALL"]
    assert definition.get("cap_add", []) == NEEDS_A_CAPABILITY.get(name, [])
    assert definition["security_opt"] == ["no-new-privileges:true"]
    assert definition["deploy"]["resources"]["limits"]["memory"]
    assert not definition.get("privileged", False)
    limit = definition["ulimits"]["nofile"]
    # Locust warns below 10,000; an engine and its compile workers are far from as many as the connections.
    assert max(10_000, 4 * Settings.model_fields["max_connections"].default) <= limit < 100_000


def test_no_container_runs_as_root() -> None:
    users = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    assert users
    assert int(users[-1]) > 0
    for name, definition in SERVICES.items():
        if not BUILT_HERE.match(definition["image"]) and name not in WRITES_ITS_ROOT:
            assert int(definition["user"].split(":")[0]) > 0


def healthy(port: int) -> bool:
    line = next(line for line in DOCKERFILE.splitlines() if "/health/live" in line)
    command = json.loads(line.strip().removeprefix("CMD "))
    call = [part.replace("/8000", f"/{port}") for part in command]
    return subprocess.run(call, capture_output=True, check=False, timeout=20).returncode == 0


def test_the_image_is_healthy_when_alive_not_when_ready() -> None:
    with running(states={"compiled": "warming"}) as front:
        assert front.http.get("/health/ready").status_code == 503
        port = urlsplit(front.url).port
        assert healthy(port)
    assert not healthy(port)


def test_every_mounted_file_exists_and_is_read_only() -> None:
    mounts = [
        mount
        for definition in SERVICES.values()
        for mount in definition.get("volumes", [])
        if mount.startswith("./")
    ]
    assert mounts
    for mount in mounts:
        source, _, options = mount.split(":")
        assert (ROOT / source).exists()
        assert options == "ro"


def test_every_copied_path_is_let_through_to_the_build() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert {path for copied in copies for path in copied.split()} == allowed


def test_the_service_gets_only_variables_that_it_accepts() -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    passed = {
        name
        for service in SERVICES.values()
        for name in service.get("environment", {})
        if name.startswith(PREFIX)
    }
    assert passed
    assert passed | set(re.findall(r"\b(LAUNCHBOUND_\w+)=", DOCKERFILE)) <= known


def test_the_engines_of_both_services_have_cores_of_their_own() -> None:
    first, second = (SERVICES[name]["environment"] for name in ("service", "service-gpu"))
    assert "LAUNCHBOUND_CORES" not in first
    assert second["LAUNCHBOUND_CORES"] == "lower"
    assert first["LAUNCHBOUND_ENGINE_CPUS"] != second["LAUNCHBOUND_ENGINE_CPUS"]


def test_a_stopping_service_has_longer_than_it_needs_to_drain() -> None:
    for name in ("service", "service-gpu"):
        assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > SECONDS_TO_END


def test_prometheus_looks_for_containers_that_compose_starts() -> None:
    for job in PROMETHEUS["scrape_configs"]:
        for looked_up in job["dns_sd_configs"]:
            assert set(looked_up["names"]) <= SERVICES.keys()
    (service_job,) = [job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == "launchbound"]
    assert service_job["dns_sd_configs"][0]["port"] == published_port("service")


def test_the_load_generator_can_be_scraped_and_sends_to_every_mode() -> None:
    command = SERVICES["locust"]["command"]
    assert "--metrics-host=0.0.0.0" in command
    assert f"--modes=${{LAUNCHBOUND_MODES:-{','.join(default_modes())}}}" in command
    (job,) = [job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == "locust"]
    assert job["dns_sd_configs"][0]["port"] == PORT


def test_a_sweep_runs_once_and_its_results_stay() -> None:
    sweep = SERVICES["sweep"]
    assert sweep["restart"] == "no"
    assert sweep["entrypoint"] == ["launchbound", "sweep", "--url", "http://service:8000"]
    (volume,) = sweep["volumes"]
    name, folder = volume.split(":")
    assert name in COMPOSE["volumes"]
    # A sweep makes its folder under `results`, as the image's user.
    assert Path(sweep["working_dir"]) / "results" == Path(folder)
    assert f"install --directory --mode 0755 --owner launchbound {folder}\n" in DOCKERFILE
    for service in ("service", "service-gpu"):
        assert f"{volume}:ro" in SERVICES[service]["volumes"]
        assert SERVICES[service]["environment"]["LAUNCHBOUND_RESULTS_FOLDER"] == folder


def test_the_image_has_what_the_report_of_a_sweep_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = (ROOT / "requirements.lock").read_text().lower().splitlines()
    assert '*extras["report"]' in DOCKERFILE
    assert {line.partition("==")[0] for line in lines} >= set(extras["report"])


def test_grafana_queries_this_prometheus_at_its_scrape_interval() -> None:
    provisioned = yaml.safe_load((ROOT / "dashboards/provisioning/datasources/prometheus.yml").read_text())
    (source,) = provisioned["datasources"]
    address = urlsplit(source["url"])
    assert address.hostname in SERVICES
    assert address.port == published_port(str(address.hostname))
    assert source["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]


def test_grafana_links_an_exemplar_that_prometheus_keeps_to_its_trace_on_either_service() -> None:
    assert "--enable-feature=exemplar-storage" in SERVICES["prometheus"]["command"]
    assert PROMETHEUS["storage"]["exemplars"]["max_exemplars"] > 0
    provisioned = yaml.safe_load((ROOT / "dashboards/provisioning/datasources/prometheus.yml").read_text())
    links = provisioned["datasources"][0]["jsonData"]["exemplarTraceIdDestinations"]
    assert {link["name"] for link in links} == {TRACE_LABEL}
    assert [link["urlDisplayLabel"].split()[-1] for link in links] == ["service", "service-gpu"]
    for link, service in zip(links, ("service", "service-gpu"), strict=True):
        found = re.fullmatch(r"http://127\.0\.0\.1:\$\{(\w+)\}(/v1/traces/)\$\$\{__value\.raw\}", link["url"])
        assert found
        # Grafana fills in its own environment, which has the port that compose publishes.
        port = SERVICES["grafana"]["environment"][found[1]]
        assert SERVICES[service]["ports"][0] == f"127.0.0.1:{port}:8000"
        assert found[2] == LINKED


def test_grafana_finds_the_boards_where_compose_mounts_them() -> None:
    provisioned = yaml.safe_load((ROOT / "dashboards/provisioning/dashboards/launchbound.yml").read_text())
    folder = provisioned["providers"][0]["options"]["path"]
    assert f"./dashboards/grafana:{folder}:ro" in SERVICES["grafana"]["volumes"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/overview.json"
    assert (ROOT / "dashboards/grafana" / Path(home).name).exists()
