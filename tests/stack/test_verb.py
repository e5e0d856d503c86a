"""`launchbound stack`: service and Prometheus, started together, answering, and stopped together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.stack import running
from tests.stack.running import Prometheus
from tests.support.serving import until

pytestmark = pytest.mark.stack

Started = subprocess.Popen[str]


@pytest.fixture
def verb(shared_code: dict[str, str], prometheus_binary: str) -> Iterator[Started]:
    assert prometheus_binary
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHBOUND_")}
    ports = ["--port=0", "--prometheus-port=0", "--scrape-seconds=1"]
    options = [*ports, "--modes=inference_mode", "--batch-sizes=1"]
    with subprocess.Popen(
        [sys.executable, "-m", "launchbound", "stack", *options],
        env={**environment, **shared_code},
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        yield started
        started.terminate()


def printed(started: Started) -> dict[str, str]:
    """What the verb says until it waits, by the first word of each line."""
    lines = []
    for line in started.stdout:
        lines.append(line.strip())
        if line.startswith("Ctrl-C"):
            break
    return dict(re.findall(r"^(\w+): +(.*)", "\n".join(lines), re.MULTILINE))


def test_service_and_prometheus_answer_and_both_stop_with_the_verb(verb: Started) -> None:
    """With Ctrl-C; tests/cli/test_ending.py has the other signals."""
    lines = printed(verb)
    service, prometheus = lines["service"].split()[0], lines["Prometheus"].split()[0]
    assert prometheus in lines["Grafana"]
    assert "scrape interval 1s" in lines["Grafana"]
    assert running.get(f"{service}/metrics")[0] == 200
    scraped = service.removeprefix("http://")
    until(lambda: Prometheus(prometheus).health().get(scraped) == "up", "the service scraped")
    assert Prometheus(prometheus).rules()
    verb.send_signal(signal.SIGINT)
    assert verb.wait(timeout=40) == 0
    for gone in (f"{service}/metrics", f"{prometheus}/-/ready"):
        assert running.get(gone)[0] == 0
