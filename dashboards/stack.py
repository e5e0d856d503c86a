"""What `launchbound stack` runs beside a service: Prometheus, where there is one, until told to stop."""

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
"""Where a sweep on this machine shows its own metrics."""

LOOK_SECONDS = 1.0

NO_PROMETHEUS = """\
Prometheus: there is no `prometheus` on the PATH, so the service runs without. Install it (Debian and Ubuntu:
            apt-get install prometheus; others: https://prometheus.io/download/) and start again."""


def watch(
    service: str, binary: str | None, folder: Path, port: int, scrape_seconds: int, say: Callable[[str], None]
) -> int:
    """Run Prometheus at `binary` (None: there is none) beside the service at `service` until Ctrl-C.

    It scrapes every `scrape_seconds`. Its data and log stay in `folder`; `port` 0 takes a free one. `say` is
    given the lines for a person.
    Returns the exit code: 0 told to stop, 1 one of the two has ended by itself. Raises PrometheusError where
    Prometheus does not start.
    """
    try:
        with _beside(service, binary, folder, port, scrape_seconds) as prometheus:
            for line in _told(service, prometheus, scrape_seconds):
                say(line)
            shown = {"the service": service} | ({"Prometheus": prometheus} if prometheus else {})
            while not (gone := _gone(shown)):
                time.sleep(LOOK_SECONDS)
            say(f"{gone} has ended; its log is in {folder}")
            return 1
    except KeyboardInterrupt:
        return 0


@contextmanager
def _beside(
    service: str, binary: str | None, folder: Path, port: int, scrape_seconds: int
) -> Iterator[str | None]:
    if binary is None:
        yield None
        return
    targets = {"launchbound": [urlsplit(service).netloc], "locust": [LOAD_GENERATOR]}
    with local_prometheus(binary, folder, targets, f"{scrape_seconds}s", port) as running:
        yield running.url


def _told(service: str, prometheus: str | None, scrape_seconds: int) -> Iterator[str]:
    yield f"service:    {service} (/docs, /metrics; modes become ready one after another)"
    if prometheus is None:
        yield NO_PROMETHEUS
    else:
        yield f"Prometheus: {prometheus} (rules and alerts at /alerts)"
        source = f"a Prometheus data source with scrape interval {scrape_seconds}s"
        yield f"Grafana:    add {prometheus} as {source}, and"
        yield f"            import {BOARDS}/*.json; docs/observability.md tells more"
    yield "Ctrl-C stops what was started here"


def _gone(addresses: Mapping[str, str]) -> str | None:
    """Which of them takes no connection any more, if any; a busy one still does, by its kernel's hand."""
    for name, url in addresses.items():
        at = urlsplit(url)
        try:
            socket.create_connection((at.hostname or "", at.port or 0), timeout=5).close()
        except OSError:
            return name
    return None
