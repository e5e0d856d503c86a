"""For plain locust, in one process or distributed: metrics of its requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtests.run.exporter import Exporter, Outcome

REPORT = "launchbound_requests"
"""The key in a worker's report: [mode, batch size, latency in seconds, whether it failed] of each request."""

logger = logging.getLogger("launchbound")


def count_requests(environment: Environment, exporter: Exporter) -> None:
    """Have `exporter` count the requests of `environment`, those that workers report where it is a master.

    Call it after the runner was created. A request counts where its context has `mode` and `batch`.
    """
    ended: list[tuple[str, int, float, Outcome]] = []

    def report(client_id: str, data: dict[str, Any]) -> None:
        data[REPORT] = list(ended)
        ended.clear()

    def take(client_id: str, data: Mapping[str, Any]) -> None:
        if REPORT not in data:
            logger.error("worker %s reports no requests: give it the same locust file", client_id)
        for mode, batch, latency_seconds, outcome in data.get(REPORT, []):
            exporter.observe(mode, batch, latency_seconds, outcome)

    if isinstance(environment.runner, WorkerRunner):
        _each_request(environment, lambda *request: ended.append(request))
        environment.events.report_to_master.add_listener(report)  # type: ignore[no-untyped-call]
        return
    exporter.users.set_function(lambda: environment.runner.user_count if environment.runner else 0)
    if isinstance(environment.runner, MasterRunner):
        environment.events.worker_report.add_listener(take)  # type: ignore[no-untyped-call]
    else:
        _each_request(environment, exporter.observe)


def _each_request(environment: Environment, note: Callable[[str, int, float, Outcome], None]) -> None:
    """Call `note` with mode, batch size, latency in seconds and outcome of each request that ends here."""

    def ended(
        response_time: float, exception: Exception | None, context: Mapping[str, str], **_: object
    ) -> None:
        if "mode" in context:
            outcome: Outcome = "ok" if exception is None else "error"
            note(context["mode"], int(context["batch"]), response_time / 1e3, outcome)

    environment.events.request.add_listener(ended)  # type: ignore[no-untyped-call]
