"""`launchbound stack`: runs Prometheus, where it is installed, beside a service until Ctrl-C."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from dashboards.local import local_prometheus

BOARDS = Path(__file__).parent / "grafana"
LOAD_GENERATOR = "127.0.0.1:9646"
"""Where a sweep on this machine exports its own metrics."""

LOOK_SECONDS = 1.0

NO_PROMETHEUS = """\
Prometheus: there is no `prometheus` on the PATH, so the service runs alone. Install it (Debian and Ubuntu:
            apt-get install prometheus; others: https://prometheus.io/download/) and start again."""


def watch(
    service: str,
    binary: str | None,
    folder: Path,
    port: int,
    scrape_seconds: int,
    report: Callable[[str], None],
    owned: Callable[[list[str]], list[str]] = list,
) -> int:
    """Run Prometheus at `binary` (None: there is none) beside the service at `service` until Ctrl-C.

    It scrapes every `scrape_seconds`. Its data and log stay in `folder`; `port` 0 takes a free one. `report`
    is called with the lines to print, `owned` with Prometheus's command line, as `local_prometheus` has it.
    Returns the exit code: 0 after Ctrl-C, 1 where the service or Prometheus ended. Raises PrometheusError
    where Prometheus does not start.
    """
    try:
        with _beside(service, binary, folder, port, scrape_seconds, owned) as prometheus:
            for line in _lines(service, prometheus, scrape_seconds):
                report(line)
            addresses = {"the service": service} | ({"Prometheus": prometheus} if prometheus else {})
            while not (ended := _ended(addresses)):
                time.sleep(LOOK_SECONDS)
            report(f"{ended} has ended; its log is in {folder}")
            return 1
    except KeyboardInterrupt:
        return 0


@contextmanager
def _beside(
    service: str,
    binary: str | None,
    folder: Path,
    port: int,
    scrape_seconds: int,
    owned: Callable[[list[str]], list[str]],
) -> Iterator[str | None]:
    if binary is None:
        yield None
        return
    targets = {"launchbound": [urlsplit(service).netloc], "locust": [LOAD_GENERATOR]}
    with local_prometheus(binary, folder, targets, f"{scrape_seconds}s", port, owned) as running:
        yield running.url


def _lines(service: str, prometheus: str | None, scrape_seconds: int) -> Iterator[str]:
    yield f"service:    {service} (/docs, /metrics; modes become ready one after another)"
    if prometheus is None:
        yield NO_PROMETHEUS
    else:
        yield f"Prometheus: {prometheus} (rules and alerts at /alerts)"
        source = f"a Prometheus data source with scrape interval {scrape_seconds}s"
        yield f"Grafana:    add {prometheus} as {source}, and"
        yield f"            import {BOARDS}/*.json; see docs/observability.md"
        yield f"            exemplars: label trace_id, URL {service}/v1/traces/${{__value.raw}}"
    yield "Ctrl-C stops what was started here"


def _ended(addresses: Mapping[str, str]) -> str | None:
    """The first that refuses connections, if any; the kernel accepts connections for a busy one."""
    for name, url in addresses.items():
        at = urlsplit(url)
        try:
            socket.create_connection((at.hostname or "", at.port or 0), timeout=5).close()
        except OSError:
            return name
    return None
