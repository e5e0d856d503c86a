"""The load generator's own Prometheus metrics, on a port of its own; a failure is never fatal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    start_http_server,
)

PORT = 9646
BUCKETS = tuple(0.0005 * 2**power for power in range(18))
"""Seconds, 0.5 ms to 65 s."""


Outcome = Literal["ok", "error", "rejected"]
"""`rejected`: refused by the service's full queue in an open loop."""


class Exporter:
    """The `launchbound_loadtest_*` series of one load generator."""

    def __init__(self, run: Mapping[str, str]) -> None:
        """`run` becomes the labels of `launchbound_loadtest_run_info`; its key `run` is the run's id."""
        disable_created_metrics()
        self.registry = CollectorRegistry()
        self.users = Gauge("launchbound_loadtest_users", "Simulated users running.", registry=self.registry)
        self._requests = Counter(
            "launchbound_loadtest_requests_total",
            "Requests that ended, as the client saw them.",
            ["mode", "batch", "outcome"],
            registry=self.registry,
        )
        self._latency = Histogram(
            "launchbound_loadtest_latency_seconds",
            "From sending a request to having its answer.",
            ["mode"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        Info("launchbound_loadtest_run", "The run in progress.", registry=self.registry).info(dict(run))

    def observe(self, mode: str, batch_size: int, latency_seconds: float, outcome: Outcome) -> None:
        self._requests.labels(mode, str(batch_size), outcome).inc()
        self._latency.labels(mode).observe(latency_seconds)

    def serve(self, port: int, host: str = "127.0.0.1") -> str:
        """Serve /metrics at `host:port`; port 0: do not. Returns a line that states the result."""
        if port == 0:
            return "load metrics are off"
        try:
            start_http_server(port, host, self.registry)
        except OSError as error:
            return f"load metrics are not exported: port {port} cannot be used ({error}); choose another"
        return f"load metrics at http://{host}:{port}/metrics"
