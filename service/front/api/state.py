"""What the routes are given to work with; `service.front.app` puts it together."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from service.front.advice import StepStatistics
from service.front.engine_client import EngineClient
from service.front.metrics.recorder import Metrics
from service.front.request_timing import RequestTiming
from service.front.settings import Settings
from service.front.study_runner import StudyRunner
from service.front.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class AppState:
    """The long-lived objects of one front."""

    settings: Settings
    client: EngineClient
    supervisor: Supervisor
    studies: StudyRunner
    metrics: Metrics
    statistics: StepStatistics

    def observe(self, timing: RequestTiming) -> None:
        """One request that ended well, for everything that keeps count."""
        self.metrics.observe(timing)
        self.statistics.observe(timing)

    @property
    def device(self) -> str:
        """Where the engine runs, or ran when it last spoke."""
        return self.client.device


def state_of(connection: HTTPConnection) -> AppState:
    """The state of the app that serves this request."""
    state: AppState = connection.app.state.launchbound
    return state
