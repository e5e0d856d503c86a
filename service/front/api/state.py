"""The long-lived objects that the routes work with; `service.front.app` builds them."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from service.front.advice import ServedRequests
from service.front.engine_client import EngineClient
from service.front.errors import UnknownMode
from service.front.metrics.recorder import Metrics
from service.front.request_timing import RequestTiming
from service.front.settings import Settings
from service.front.study_runner import StudyRunner
from service.front.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class AppState:
    """One front: its settings and the objects that live as long as it does."""

    settings: Settings
    client: EngineClient
    supervisor: Supervisor
    studies: StudyRunner
    metrics: Metrics
    statistics: ServedRequests

    def check_mode(self, mode: str) -> None:
        """Raise UnknownMode unless this instance serves `mode`."""
        known = self.settings.modes
        if mode not in known:
            raise UnknownMode(f"no mode '{mode[:64]}' here; try one of {', '.join(known)}", param="mode")

    def observe(self, timing: RequestTiming) -> None:
        """Record one request that ended well in the metrics, and for the advice.

        One that ran as another form of its mode than declared says nothing of that mode.
        """
        self.metrics.observe(timing)
        declared = self.client.modes.get(timing.job.mode)
        if declared is None or timing.outcome.effective == declared.effective:
            self.statistics.observe(timing)


def state_of(connection: HTTPConnection) -> AppState:
    """The state of the app that serves this request."""
    state: AppState = connection.app.state.launchbound
    return state
