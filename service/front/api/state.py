"""The long-lived objects that the routes work with; `service.front.app` builds them."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from service.front.advice import ServedRequests
from service.front.engine_client import EngineClient
from service.front.errors import UnknownMode
from service.front.findings import Findings
from service.front.large_bodies import LargeBodies
from service.front.metrics.recorder import Metrics
from service.front.request_timing import RequestTiming
from service.front.run_comparison import RunComparison
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
    large_bodies: LargeBodies
    findings: Findings = field(default_factory=Findings)
    comparison: RunComparison = field(default_factory=RunComparison)
    _unobserved: list[RequestTiming] = field(default_factory=list)

    def check_mode(self, mode: str, param: str = "mode") -> None:
        """Raise UnknownMode unless this instance serves `mode`, which `param` names."""
        known = self.settings.modes
        if mode not in known:
            raise UnknownMode(f"no mode '{mode[:64]}' here; try one of {', '.join(known)}", param=param)

    def observe_soon(self, timing: RequestTiming) -> None:
        """Have one request that ended well recorded in the metrics, and for the advice, by `observe_all`."""
        self._unobserved.append(timing)

    def observe_all(self) -> None:
        """Record what is still to be recorded: before anyone reads it, and when the engine has its next job.

        So no client waits for it, and nobody who reads misses a request that has been answered.
        """
        unobserved = self._unobserved.copy()
        self._unobserved.clear()
        for timing in unobserved:
            self._observe(timing)

    def _observe(self, timing: RequestTiming) -> None:
        """One that ran as another form of its mode than declared says nothing of that mode."""
        self.metrics.observe(timing)
        declared = self.client.modes.get(timing.job.mode)
        if declared is None or timing.outcome.effective == declared.effective:
            self.statistics.observe(timing)


def state_of(connection: HTTPConnection) -> AppState:
    """The state of the app that serves this request."""
    state: AppState = connection.app.state.launchbound
    return state
