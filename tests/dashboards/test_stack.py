"""The configuration of a Prometheus without Docker."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
import yaml

from dashboards.stack import PrometheusError, configuration, local_prometheus, watch


def test_only_jobs_with_addresses_are_scraped_and_at_the_given_interval() -> None:
    content = yaml.safe_load(configuration({"launchbound": ["127.0.0.1:1", "127.0.0.1:2"]}, "2s"))
    (job,) = content["scrape_configs"]
    assert job == {"job_name": "launchbound", "static_configs": [{"targets": ["127.0.0.1:1", "127.0.0.1:2"]}]}
    assert content["global"]["scrape_interval"] == "2s"


def test_the_rules_are_found_from_any_folder() -> None:
    for rules in yaml.safe_load(configuration({}, "5s"))["rule_files"]:
        assert Path(rules).is_absolute()
        assert Path(rules).exists()


def test_a_binary_that_does_not_start_is_reported_with_its_log(tmp_path: Path) -> None:
    refusing = tmp_path / "refusing"
    refusing.write_text(f"#!{sys.executable}\nraise SystemExit('no room on the disk')\n")
    refusing.chmod(0o755)
    with (
        pytest.raises(PrometheusError, match="no room on the disk"),
        local_prometheus(str(refusing), tmp_path, {}),
    ):
        pass


def test_without_a_binary_the_stack_serves_until_stopped_and_explains_how_to_install_it(
    tmp_path: Path,
) -> None:
    lines: list[str] = []

    def listen(line: str) -> None:
        lines.append(line)
        if "Ctrl-C" in line:
            raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", 0)) as service:
        url = f"http://127.0.0.1:{service.getsockname()[1]}"
        assert watch(url, None, tmp_path, 0, 5, listen) == 0
    assert any(url in line for line in lines)
    assert any("apt-get install prometheus" in line for line in lines)


def test_the_stack_ends_when_the_service_has_ended_and_names_its_log(tmp_path: Path) -> None:
    lines: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as service:
        url = f"http://127.0.0.1:{service.getsockname()[1]}"
    assert watch(url, None, tmp_path, 0, 5, lines.append) == 1
    assert lines[-1] == f"the service has ended; its log is in {tmp_path}"
