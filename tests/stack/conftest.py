"""One stack for all tests here: the real service under load, scraped each second by a real Prometheus."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import Gauge, start_http_server

from dashboards.stack import local_prometheus
from loadtests.run.exporter import Exporter
from tests.stack import running
from tests.stack.running import Prometheus, Stack
from tests.support.serving import running as running_front
from tests.support.serving import until
from tests.support.whole_service import WholeService

ROUNDS = 3


def binary(name: str) -> str:
    """Where a binary is. Without it the test is skipped, or fails where REQUIRE_ALL=1 is set."""
    found = shutil.which(name)
    if found is None:
        message = f"{name} is not installed (Debian: apt-get install prometheus)"
        if os.environ.get("REQUIRE_ALL") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return found


@pytest.fixture(scope="session")
def promtool() -> str:
    return binary("promtool")


@pytest.fixture(scope="session")
def prometheus_binary() -> str:
    return binary("prometheus")


@pytest.fixture(scope="package")
def stack(
    tmp_path_factory: pytest.TempPathFactory, prometheus_binary: str, service: WholeService
) -> Iterator[Stack]:
    """Ends with the last test of this folder: scrapes each second would go on beside all others."""
    folder: Path = tmp_path_factory.mktemp("stack")
    exporter = Exporter({"run": "a-sweep"})
    Gauge("DCGM_FI_DEV_GPU_UTIL", "As NVIDIA's exporter.", ["gpu"], registry=exporter.registry).labels("0")
    clients, _ = start_http_server(0, "127.0.0.1", exporter.registry)
    url = service.url
    with running_front(device="cuda") as front:
        front.await_ready()
        address, gpu = (one.removeprefix("http://") for one in (url, front.url))
        client = f"127.0.0.1:{clients.server_port}"
        targets = {"launchbound": [address, gpu], "locust": [client]}
        with local_prometheus(prometheus_binary, folder, targets, "1s") as server:
            prometheus = Prometheus(server)
            every = {address, gpu, client}
            until(
                lambda: {one for one, health in prometheus.health().items() if health == "up"} == every,
                "all targets scraped",
            )
            _, before = running.get(f"{url}/metrics")
            for _ in range(ROUNDS):
                running.advance_gpu(front)
                running.drive(url, exporter, 1)
                _await_scrape(prometheus, len(every))
            running.restart_gpu(front)
            _await_scrape(prometheus, len(every))
            at = _await_scrape(prometheus, len(every))
            _, after = running.get(f"{url}/metrics")
            yield Stack(prometheus, at, address, gpu, before, after)
    clients.shutdown()
    clients.server_close()


def _await_scrape(prometheus: Prometheus, targets: int) -> float:
    """Wait until each of so many targets has been scraped after this moment.

    Returns the time of the last of these scrapes: at that time each target's newest scrape had succeeded. On
    a busy machine the next one may fail, and its series then end. The query asks for `timestamp(up)` alone,
    because Prometheus gives the time of the query, not of the scrape, for an expression such as `up == 1`.
    """
    since = time.time()
    times: list[float] = []

    def scraped() -> bool:
        times[:] = [one.points[0][1] for one in prometheus.query("timestamp(up) and up == 1")]
        return len(times) == targets and min(times) > since

    until(scraped, "a scrape after the load")
    return max(times)
